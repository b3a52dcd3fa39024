# Functions that define the targets: layers, the shared library, the tool, test support.

# Compile settings of every target of this project. Warnings are errors in the presets dev and asan and
# in .ci/run (CMAKE_COMPILE_WARNING_AS_ERROR), never for users.
function(tessera_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    # In a project without a build type, only the library is optimised: without optimisation it would
    # be 25 times slower.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O3;-DNDEBUG>)
  endif()
  if(TESSERA_DEVELOPER)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # False positives of GCC 12 inside the standard library: overlapping copies in std::string
      # (PR105651), reads past a small array in std::sort (PR107852).
      target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-array-bounds>)
    endif()
  endif()
  if(TESSERA_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${TESSERA_SANITIZE})
  endif()
endfunction()

# tessera_layer(NAME SOURCES... USES LOWER...): the static archive tessera_NAME, which may use the
# layers after USES. Tests link the archives, so that they can use internals.
function(tessera_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "USES")
  list(TRANSFORM layer_UNPARSED_ARGUMENTS PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${layer_UNPARSED_ARGUMENTS})
  if(NOT name STREQUAL "families")  # plan.cpp of all kernel folders is in the layer families
    list(FILTER sources EXCLUDE REGEX "/src/kernels/.*/plan\\.cpp$")
  endif()
  add_library(tessera_${name} STATIC ${sources})
  tessera_compile_settings(tessera_${name})
  target_include_directories(tessera_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(tessera_${name} PRIVATE TESSERA_BUILDING)
  set_target_properties(tessera_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  list(TRANSFORM layer_USES PREPEND tessera_)
  target_link_libraries(tessera_${name} PUBLIC ${layer_USES})
  set_property(GLOBAL APPEND PROPERTY tessera_layers tessera_${name})
endfunction()

# The installed library: the objects of all layers in one file that exports only the public API.
function(tessera_shared_library)
  get_property(layers GLOBAL PROPERTY tessera_layers)
  list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(tessera SHARED ${objects})
  add_library(tessera::tessera ALIAS tessera)
  target_compile_features(tessera INTERFACE cxx_std_20)
  target_include_directories(tessera INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(tessera PROPERTIES
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    # Before 1.0 a minor version may break the ABI.
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(tessera PRIVATE OpenMP::OpenMP_CXX)
  if(TESSERA_CUDA)
    target_link_libraries(tessera PRIVATE CUDA::cudart_static)
  endif()
  if(TESSERA_SANITIZE)
    target_link_options(tessera PUBLIC -fsanitize=${TESSERA_SANITIZE})
  endif()
  # No undefined symbols, and no exports but the public API.
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(tessera PRIVATE -Wl,--no-undefined -Wl,--version-script=${exports})
  set_property(TARGET tessera PROPERTY LINK_DEPENDS ${exports})
endfunction()

# The oracle, generators and comparators. They use only the public API, so that both the tests (with
# the archives) and the tool (with the shared library) can link them.
function(tessera_test_support)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cpp)
  add_library(tessera_test_support STATIC ${sources})
  tessera_compile_settings(tessera_test_support)
  target_include_directories(tessera_test_support PUBLIC
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
endfunction()

function(tessera_tool)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/tessera/*.cpp)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  add_executable(tessera_tool ${sources})
  tessera_compile_settings(tessera_tool)
  set_target_properties(tessera_tool PROPERTIES OUTPUT_NAME tessera
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(tessera_tool PRIVATE
    tessera_test_support tessera CLI11::CLI11 nlohmann_json::nlohmann_json)
endfunction()
