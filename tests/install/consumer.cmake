# Installs the library, moves the installation, and builds a user's program against it in every
# supported way. cmake -DSOURCE= -DBUILD= -DWORK= -DCXX= -P consumer.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${result}:\n${said}")
  endif()
  set(said "${said}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --component library --prefix ${WORK}/first)
if(EXISTS ${BUILD}/tessera)
  run(${CMAKE_COMMAND} --install ${BUILD} --component tool --prefix ${WORK}/first)
endif()
# No installed file has an absolute path, so that the installation can be moved.
set(prefix ${WORK}/moved)
file(RENAME ${WORK}/first ${prefix})
file(GLOB_RECURSE package ${prefix}/*.cmake ${prefix}/*.pc)
foreach(file IN LISTS package)
  file(STRINGS ${file} hits REGEX "${WORK}|${SOURCE}|${BUILD}")
  if(hits)
    message(FATAL_ERROR "${file} names a path of the machine that built it: ${hits}")
  endif()
endforeach()

# The tool has to load the library of its prefix.
if(EXISTS ${BUILD}/tessera)
  run(${CMAKE_COMMAND} -E env LD_TRACE_LOADED_OBJECTS=1 ${prefix}/bin/tessera)
  if(NOT said MATCHES "libtessera[^\n]* => ${prefix}/")
    message(FATAL_ERROR "${prefix}/bin/tessera does not load the library of its prefix:\n${said}")
  endif()
  run(${CMAKE_COMMAND} -E chdir / ${prefix}/bin/tessera explain matmul --device cpu)
  message(STATUS "tool: works")
endif()

# find_package
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/cmake
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/cmake)
run(${WORK}/cmake/consumer)
message(STATUS "find_package: works")

# Before C++20, the first error of each header says that C++20 is required.
file(GLOB headers RELATIVE ${prefix}/include ${prefix}/include/tessera/*.hpp)
list(REMOVE_ITEM headers tessera/version.hpp)
foreach(header IN LISTS headers)
  file(WRITE ${WORK}/old.cpp "#include <${header}>\n")
  execute_process(COMMAND ${CXX} -std=c++17 -fsyntax-only -I${prefix}/include ${WORK}/old.cpp
                  RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX MATCH "[^\n]*error:[^\n]*" first "${said}")
  if(result EQUAL 0 OR NOT first MATCHES "tessera requires C\\+\\+20")
    message(FATAL_ERROR "${header} with -std=c++17 ended with ${result}:\n${said}")
  endif()
endforeach()
message(STATUS "C++17: refused with a clear message")

# The C++ example is a project of its own, and checks its result.
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/cpp -B ${WORK}/example
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror")
run(${CMAKE_COMMAND} --build ${WORK}/example)
run(${WORK}/example/sparse_layers 1024)
if(NOT said MATCHES "chosen +[a-z0-9_]+attention.*4 layers on .* times as fast\n.*largest error")
  message(FATAL_ERROR "sparse_layers printed something else:\n${said}")
endif()
execute_process(COMMAND ${WORK}/example/sparse_layers 100 RESULT_VARIABLE result
                OUTPUT_VARIABLE out ERROR_VARIABLE said)
if(NOT result EQUAL 2 OR out OR NOT said MATCHES "^sparse_layers: [^\n]*got 100\n$")
  message(FATAL_ERROR "sparse_layers 100 ended with ${result}:\n${out}${said}")
endif()
message(STATUS "examples/cpp: works")

# pkg-config
file(GLOB_RECURSE pc ${prefix}/*/tessera.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
get_filename_component(lib_dir ${pc_dir} DIRECTORY)
find_program(PKG_CONFIG NAMES pkg-config pkgconf REQUIRED)
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_dir} ${PKG_CONFIG} --cflags --libs tessera
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CXX} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/consumer/consumer.cpp -o ${WORK}/with_pc ${flags})
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${lib_dir} ${WORK}/with_pc)
# The command of docs/install.md sets an rpath, so that its program finds the library.
file(READ ${SOURCE}/docs/install.md page)
if(NOT page MATCHES "\nc\\+\\+ (-std=c\\+\\+20 program.cpp[^`]+)\n./program\n")
  message(FATAL_ERROR "docs/install.md has no command for pkg-config")
endif()
file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/consumer/consumer.cpp ${WORK}/program.cpp)
file(WRITE ${WORK}/with_rpath.sh "set -e\ncd '${WORK}'\n'${CXX}' ${CMAKE_MATCH_1}\n./program\n")
run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_dir} sh ${WORK}/with_rpath.sh)
execute_process(COMMAND ${WORK}/with_pc RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE said)
if(result EQUAL 0 OR NOT said MATCHES "cannot open shared object file")
  message(FATAL_ERROR "docs/install.md says that a program without rpath does not start, but:\n${said}")
endif()
message(STATUS "pkg-config: works, with LD_LIBRARY_PATH and with rpath")

# add_subdirectory builds only the library, as configuring shows.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subproject -B ${WORK}/subproject
    -DTESSERA_SOURCE=${SOURCE} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
# Without a build type, the library is optimised and the enclosing project is not.
file(READ ${WORK}/subproject/compile_commands.json commands)
string(JSON count LENGTH "${commands}")
math(EXPR last "${count} - 1")
set(ours 0)
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  string(JSON command GET "${commands}" ${i} command)
  string(FIND "${file}" "${SOURCE}/src/" at)
  if(at EQUAL 0)
    math(EXPR ours "${ours} + 1")
  endif()
  if((at EQUAL 0 AND NOT command MATCHES " -O3 ") OR (NOT at EQUAL 0 AND command MATCHES " -O3 "))
    message(FATAL_ERROR "without a build type, the compile command of ${file} is\n${command}")
  endif()
endforeach()
if(ours EQUAL 0)
  message(FATAL_ERROR "the subproject does not compile the library")
endif()
message(STATUS "add_subdirectory: works")
