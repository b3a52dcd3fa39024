# How each kind of target is made: layers, the shared library, the tool, test support.

# What every target of this project is compiled with. Warnings are errors in the presets dev and asan
# and in .ci/run (CMAKE_COMPILE_WARNING_AS_ERROR), never for users.
function(tessera_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    # A subfolder of a project without a build type: that project's choice is left alone, but the
    # library unoptimised would be 25 times slower.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O3;-DNDEBUG>)
  endif()
  if(TESSERA_DEVELOPER)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # GCC 12 sees faults inside the standard library where there are none: overlapping copies in
      # std::string (PR105651), reads past a small array in std::sort (PR107852).
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
# layers named after USES. Tests link the archives, so that internals are within reach.
function(tessera_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "USES")
  list(TRANSFORM layer_UNPARSED_ARGUMENTS PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${layer_UNPARSED_ARGUMENTS})
  if(NOT name STREQUAL "families")  # every kernel folder's plan.cpp is of this one layer
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

# The library that is installed: every layer's objects in one file that shows the public API alone.
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
  # Nothing undefined is left to the user's link, nothing but the public API is shown to it.
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(tessera PRIVATE -Wl,--no-undefined -Wl,--version-script=${exports})
  set_property(TARGET tessera PROPERTY LINK_DEPENDS ${exports})
endfunction()

# The oracle, generators and comparators. They know the public API alone, so that both the tests
# (against the archives) and the tool (against the shared library) can use them.
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
