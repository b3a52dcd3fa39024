# FindCUTLASS against fake trees: cmake -DSOURCE=... -DWORK=... -P find_cutlass.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})

function(fake_headers folder major minor patch)
  file(WRITE ${folder}/cutlass/version.h "#pragma once
#define CUTLASS_MAJOR ${major}
#define CUTLASS_MINOR ${minor}
#define CUTLASS_PATCH ${patch}
#define CUTLASS_VERSION ((CUTLASS_MAJOR)*100 + (CUTLASS_MINOR)*10 + CUTLASS_PATCH)
")
endfunction()
fake_headers(${WORK}/new/include 4 2 1)
fake_headers(${WORK}/old/include 3 9 0)
fake_headers(${WORK}/wheels/cutlass_library/source/include 4 3 0)
fake_headers(${WORK}/other/flashinfer/data/cutlass/include 4 4 0)
foreach(package IN ITEMS wheels/cutlass_library other/flashinfer)
  file(WRITE ${WORK}/${package}/__init__.py "")
endforeach()

file(WRITE ${WORK}/probe/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH ${SOURCE}/cmake)
find_package(CUTLASS 4.2 REQUIRED)
get_target_property(folder CUTLASS::headers INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS \"found \${CUTLASS_VERSION} in \${folder}\")
")

# probe(NAME EXPECTED ENVIRONMENT ARGS...): CMake's output must contain EXPECTED, ignoring line breaks.
function(probe name expected environment)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CUTLASS_DIR ${environment}
            ${CMAKE_COMMAND} -S ${WORK}/probe -B ${WORK}/build-${name} ${ARGN}
    OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${expected}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${name}: expected '${expected}' in:\n${said}")
  endif()
endfunction()

probe(cache "found 4.2.1 in ${WORK}/new/include" "PYTHONPATH=" -DCUTLASS_DIR=${WORK}/new)
probe(folder "found 4.2.1 in ${WORK}/new/include" "PYTHONPATH=" -DCUTLASS_DIR=${WORK}/new/include)
probe(environment "found 4.2.1 in ${WORK}/new/include" "CUTLASS_DIR=${WORK}/new")
probe(wheel "found 4.3.0 in ${WORK}/wheels/cutlass_library" "PYTHONPATH=${WORK}/wheels")
probe(flashinfer "found 4.4.0 in ${WORK}/other/flashinfer" "PYTHONPATH=${WORK}/other")
probe(old "required is at least \"4.2\"" "PYTHONPATH=" -DCUTLASS_DIR=${WORK}/old)
probe(absent "pip install --no-deps nvidia-cutlass==4.2.0.0" "PYTHONPATH="
      -DCUTLASS_DIR=${WORK}/nowhere)
message(STATUS "FindCUTLASS: all cases pass")
