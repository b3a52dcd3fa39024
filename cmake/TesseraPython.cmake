# The exports that python/tessera loads. The wheel has them next to the library, with the headers and
# the CMake package, all under tessera/.
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python_EXECUTABLE} -m tvm_ffi.config --cmakedir
                OUTPUT_VARIABLE tvm_ffi_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "TESSERA_PYTHON is on, but ${Python_EXECUTABLE} has no apache-tvm-ffi: \
install it with `pip install apache-tvm-ffi`, or let `pip install .` bring its own.")
endif()
find_package(tvm_ffi CONFIG REQUIRED)

# The positions of an operation's arguments, from the table that the Python package uses too.
set(signatures ${PROJECT_BINARY_DIR}/ffi/generated/signatures.hpp)
set(signatures_script ${PROJECT_SOURCE_DIR}/tools/signatures_header.py)
add_custom_command(OUTPUT ${signatures}
  COMMAND ${Python_EXECUTABLE} ${signatures_script} ${signatures}
  DEPENDS ${signatures_script} ${PROJECT_SOURCE_DIR}/python/tessera/_signatures.py
  VERBATIM)

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ffi/*.cpp)
add_library(tessera_ffi MODULE ${sources} ${signatures})
tessera_compile_settings(tessera_ffi)
target_include_directories(tessera_ffi PRIVATE ${PROJECT_BINARY_DIR}/ffi)
# As system headers, tvm_ffi's headers give no warnings with our flags.
get_target_property(tvm_ffi_headers tvm_ffi::shared INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(tessera_ffi SYSTEM PRIVATE ${tvm_ffi_headers})
target_link_libraries(tessera_ffi PRIVATE tessera tvm_ffi::shared)
# The package tvm_ffi loads libtvm_ffi before this library; libtessera is in the same folder.
set_target_properties(tessera_ffi PROPERTIES
  INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH OFF
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
install(TARGETS tessera_ffi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)

if(SKBUILD)
  # Wheels have no symbolic links, so versioned names would be copies.
  set_property(TARGET tessera PROPERTY VERSION)
  set_property(TARGET tessera PROPERTY SOVERSION)
endif()
