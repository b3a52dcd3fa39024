# The GPU backends. A .cu file is generated for each kernel row of each family, so that rows compile
# separately.
#
# A family is a folder below src/kernels/cuda with a rows.hpp, and launch.cuh with its kernel:
# `launch<tile, dtypes>` in namespace tessera::cuda:: and the folder's path. Rows are named
# BACKEND_FAMILY_FACTS. A family without kernels of its own has launch.hpp in the place of launch.cuh:
# `launch(call)`, `missing()` and `workspace(call)` in that namespace serve all rows, and no .cu is
# generated.

if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
  mark_as_advanced(TESSERA_NVCC)
  if(NOT TESSERA_NVCC)
    message(FATAL_ERROR "TESSERA_CUDA is on, but there is no nvcc: install the CUDA toolkit (12.8 \
or later), or set CMAKE_CUDA_COMPILER, or configure with -DTESSERA_CUDA=OFF.")
  endif()
  set(CMAKE_CUDA_COMPILER ${TESSERA_NVCC} CACHE FILEPATH "nvcc")
endif()
# Each row has its own -gencode.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "TESSERA_CUDA needs the CUDA toolkit 12.8 or later, ${CMAKE_CUDA_COMPILER} \
is ${CMAKE_CUDA_COMPILER_VERSION}.")
endif()
# CUDA 13 has no libnvToolsExt, but FindCUDAToolkit of CMake 3.25.1 sets a property of its target. So
# an empty target is defined.
if(NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# Hopper's instructions require sm_90a. Rows of sm80 also have PTX, for all later GPUs. Rows of
# sm80_bsr begin before the grid ahead of them ends (programmatic dependent launch), and only code
# for sm_90 and later can wait for that grid. TESSERA_CUDA_ARCHITECTURES replaces all of this: rows
# of sm80 are compiled for the architectures that it names, and rows of sm90 if it names 90.
set(tessera_has_sm90 1)
set(tessera_gencode_sm90 -gencode=arch=compute_90a,code=sm_90a)
set(tessera_gencode_sm80 -gencode=arch=compute_80,code=[sm_80,compute_80])
set(tessera_gencode_sm80_bsr ${tessera_gencode_sm80} -gencode=arch=compute_90,code=[sm_90,compute_90])
if(TESSERA_CUDA_ARCHITECTURES)
  set(tessera_gencode_sm80 "")
  foreach(name IN LISTS TESSERA_CUDA_ARCHITECTURES)
    if(NOT name MATCHES "^([0-9]+)(-virtual)?$" OR CMAKE_MATCH_1 LESS 80)
      message(FATAL_ERROR "TESSERA_CUDA_ARCHITECTURES: '${name}': expected numbers from 80 on, such \
as 80, 89 or 90, or with -virtual for PTX, such as 80-virtual.")
    endif()
    set(kind sm)
    if(CMAKE_MATCH_2)
      set(kind compute)
    endif()
    list(APPEND tessera_gencode_sm80
         -gencode=arch=compute_${CMAKE_MATCH_1},code=${kind}_${CMAKE_MATCH_1})
  endforeach()
  set(tessera_gencode_sm80_bsr ${tessera_gencode_sm80})
  if(NOT "90" IN_LIST TESSERA_CUDA_ARCHITECTURES)
    set(tessera_has_sm90 0)
    set(tessera_gencode_sm90 "")
  endif()
endif()

# tessera_rows(FOLDER): writes a .cu for each row of FOLDER/rows.hpp that TESSERA_KERNELS asks for.
# Adds to row_sources, row_includes, row_declarations and row_launchers. Without kernels of its own, the
# folder's .cpp files are compiled once, for all rows: they are added to host_sources.
function(tessera_rows folder)
  set(header ${PROJECT_SOURCE_DIR}/${folder}/rows.hpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  string(REGEX REPLACE "^src/kernels/cuda/" "" space ${folder})
  string(REPLACE "/" "::" space ${space})
  string(APPEND row_includes "#include \"${folder}/rows.hpp\"\n")
  set(host_launch OFF)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/launch.hpp)
    set(host_launch ON)
    string(APPEND row_includes "#include \"${folder}/launch.hpp\"\n")
    file(GLOB cpp CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${folder}/*.cpp)
    list(FILTER cpp EXCLUDE REGEX "/plan\\.cpp$")
    list(APPEND host_sources ${cpp})
  endif()
  file(STRINGS ${header} lines REGEX "KernelRow k[A-Za-z0-9]+\\[\\]|\\.name = \"")
  foreach(line IN LISTS lines)
    if(line MATCHES "KernelRow (k[A-Za-z0-9]+)")
      set(table ${CMAKE_MATCH_1})
      set(index 0)
    endif()
    if(line MATCHES "\\.name = \"((sm[0-9]+)_[a-z0-9_]+)\"")
      set(row ${CMAKE_MATCH_1})
      set(backend ${CMAKE_MATCH_2})
      set(built ON)
      if(backend STREQUAL "sm90" AND NOT tessera_has_sm90)
        set(built OFF)
      elseif(NOT row MATCHES "${TESSERA_KERNELS}")
        set(built OFF)
      endif()
      if(built AND host_launch)
        string(APPEND row_launchers
               "    {&planning::${table}[${index}], ${space}::launch, ${space}::missing,\n     ${space}::workspace},\n")
      elseif(built)
        set(source ${PROJECT_BINARY_DIR}/rows/${row}.cu)
        configure_file(${PROJECT_SOURCE_DIR}/cmake/row.cu.in ${source} @ONLY)
        set(gencode ${tessera_gencode_${backend}})
        string(REGEX MATCH "^sm[0-9]+_[a-z]+" family ${row})
        if(DEFINED tessera_gencode_${family})
          set(gencode ${tessera_gencode_${family}})
        endif()
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${gencode}")
        list(APPEND row_sources ${source})
        string(APPEND row_declarations "void launch_${row}(const planning::Call&);\n")
        string(APPEND row_launchers "    {&planning::${table}[${index}], launch_${row}, nullptr, nullptr},\n")
      endif()
      math(EXPR index "${index} + 1")
    endif()
  endforeach()
  foreach(name IN ITEMS row_sources host_sources row_includes row_declarations row_launchers)
    set(${name} "${${name}}" PARENT_SCOPE)
  endforeach()
endfunction()

set(row_sources "")
set(host_sources "")
set(row_includes "")
set(row_declarations "")
set(row_launchers "")
file(GLOB_RECURSE tables CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/src/kernels/cuda/rows.hpp)
foreach(table IN LISTS tables)
  get_filename_component(folder ${table} DIRECTORY)
  tessera_rows(${folder})
endforeach()
list(LENGTH row_sources row_count)
message(STATUS "GPU kernels: ${row_count} rows match TESSERA_KERNELS '${TESSERA_KERNELS}'")
configure_file(${PROJECT_SOURCE_DIR}/cmake/launchers.cpp.in
               ${PROJECT_BINARY_DIR}/rows/launchers.cpp @ONLY)

# Kernels for patterns and partial results: plain CUDA for every GPU, without rows.
file(GLOB prepare_kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     src/kernels/cuda/merge/*.cu src/kernels/cuda/prepare/*.cu src/kernels/cuda/spgemm/*.cu)
file(GLOB prepare_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} src/kernels/cuda/prepare/*.cpp)
set_source_files_properties(${prepare_kernels} PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm80}")
# Kernels of a family that are not rows.
set(sm90_kernels "")
if(tessera_has_sm90)
  file(GLOB sm90_kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
       src/kernels/cuda/sm90/*/*.cu)
endif()
set_source_files_properties(${sm90_kernels} PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm90}")
file(GLOB shared_kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     src/kernels/cuda/attention/*.cu src/kernels/cuda/attention_backward/*.cu)
set_source_files_properties(${shared_kernels}
  PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm80};${tessera_gencode_sm90}")

tessera_layer(cuda src/kernels/cuda/backend.cpp src/kernels/cuda/ranges.cpp USES core problem walk families)
target_sources(tessera_cuda PRIVATE
  ${PROJECT_BINARY_DIR}/rows/launchers.cpp ${row_sources} ${host_sources} src/kernels/cuda/sm90/tile/tensor_map.cpp
  ${prepare_sources} ${prepare_kernels} ${sm90_kernels} ${shared_kernels})
target_link_libraries(tessera_cuda PRIVATE CUDA::cudart_static)
set_source_files_properties(src/kernels/cuda/backend.cpp
  PROPERTIES COMPILE_DEFINITIONS TESSERA_HAS_SM90=${tessera_has_sm90})
if(row_sources MATCHES "sm90_")  # wgmma through CUTLASS's instruction wrappers
  find_package(CUTLASS 4.2 REQUIRED)
  target_link_libraries(tessera_cuda PRIVATE CUTLASS::headers)
endif()
# The launcher writes nvcc's report on registers and the hashes of the machine code to files per
# object. It fails on register spills and serialised wgmma.
set_target_properties(tessera_cuda PROPERTIES
  CUDA_VISIBILITY_PRESET hidden
  CUDA_RUNTIME_LIBRARY None
  CUDA_COMPILER_LAUNCHER
  "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/tools/check_ptxas.py;--compile;${PROJECT_BINARY_DIR}/rows")
# The standard is a plain option because CMake 3.25 has no C++20 flag for nvcc.
target_compile_options(tessera_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
  -std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr -compress-mode=size -Xptxas=-v>)
if(TESSERA_DEVELOPER)
  target_compile_options(tessera_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
endif()

# Results of measurements record hashes of machine_code.json, which identify the code that ran.
set(tessera_kernel_objects $<FILTER:$<TARGET_OBJECTS:tessera_cuda>,INCLUDE,\\.cu\\.o$>)
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/machine_code.json
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/machine_code.py collect
          ${PROJECT_BINARY_DIR} ${CMAKE_CUDA_COMPILER_VERSION} ${tessera_kernel_objects}
  DEPENDS $<TARGET_OBJECTS:tessera_cuda> ${PROJECT_SOURCE_DIR}/tools/machine_code.py
  COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(tessera_machine_code ALL DEPENDS ${PROJECT_BINARY_DIR}/machine_code.json)
install(FILES ${PROJECT_BINARY_DIR}/machine_code.json DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT library)
