# CUTLASS's headers (cute/, cutlass/), for kernels that use their instruction wrappers. Looks at
#   CUTLASS_DIR (cache variable, then environment): a checkout, or its include folder;
#   Python wheels that have the headers (nvidia-cutlass, flashinfer-python): for the build of a wheel
#   among the packages of that build, then in the project's .venv, else in python3's packages.
# The first place that has them is used. Defines CUTLASS::headers, CUTLASS_INCLUDE_DIR and
# CUTLASS_VERSION. Use at least 4.2: find_package(CUTLASS 4.2 REQUIRED).

set(CUTLASS_DIR "" CACHE PATH "A CUTLASS checkout, or its include folder")

# cutlass_dir_of_wheel(PYTHON MODULE FOLDER OUT): the folder inside an installed Python package.
function(cutlass_dir_of_wheel python module folder out)
  execute_process(
    COMMAND ${python} -c "import importlib.util as u, sys
spec = u.find_spec(sys.argv[1])
print(list(spec.submodule_search_locations)[0] if spec else '')" ${module}
    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(package)
    set(${out} ${package}/${folder} PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

set(cutlass_places ${CUTLASS_DIR} $ENV{CUTLASS_DIR})
list(TRANSFORM cutlass_places APPEND /include OUTPUT_VARIABLE cutlass_checkouts)
list(APPEND cutlass_places ${cutlass_checkouts})
if(NOT cutlass_places)
  find_program(CUTLASS_PYTHON python3 HINTS ${CMAKE_SOURCE_DIR}/.venv/bin NO_CACHE)
  if(SKBUILD)  # the Python that builds the wheel has the requirements of the build
    list(PREPEND CUTLASS_PYTHON ${Python_EXECUTABLE})
  endif()
  foreach(python IN LISTS CUTLASS_PYTHON)
    cutlass_dir_of_wheel(${python} cutlass_library source/include place)
    list(APPEND cutlass_places ${place})
    cutlass_dir_of_wheel(${python} flashinfer data/cutlass/include place)
    list(APPEND cutlass_places ${place})
  endforeach()
endif()

find_path(CUTLASS_INCLUDE_DIR cutlass/version.h PATHS ${cutlass_places} NO_DEFAULT_PATH NO_CACHE)
set(CUTLASS_VERSION "")
if(CUTLASS_INCLUDE_DIR)
  file(STRINGS ${CUTLASS_INCLUDE_DIR}/cutlass/version.h lines
       REGEX "^#define CUTLASS_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM lines REPLACE ".* ([0-9]+).*" "\\1")
  list(JOIN lines . CUTLASS_VERSION)
endif()

list(JOIN cutlass_places ", " cutlass_places)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUTLASS
  REQUIRED_VARS CUTLASS_INCLUDE_DIR VERSION_VAR CUTLASS_VERSION
  REASON_FAILURE_MESSAGE "Get the headers with `pip install --no-deps nvidia-cutlass==4.2.0.0` \
(in the project's .venv), or point CUTLASS_DIR at a checkout. Looked in: ${cutlass_places}")

if(CUTLASS_FOUND AND NOT TARGET CUTLASS::headers)
  add_library(CUTLASS::headers INTERFACE IMPORTED)
  target_include_directories(CUTLASS::headers SYSTEM INTERFACE ${CUTLASS_INCLUDE_DIR})
endif()
