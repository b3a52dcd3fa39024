# Tests: one executable and one CTest entry per test file, and checks of the source tree.
find_package(GTest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

get_property(tessera_archives GLOBAL PROPERTY tessera_layers)
list(REVERSE tessera_archives)

# Allocations that are too large for any machine must fail in the library, not in the sanitizer.
set(tessera_test_environment "ASAN_OPTIONS=allocator_may_return_null=1")
if(TESSERA_SANITIZE MATCHES "thread")
  # Clang's OpenMP runtime loads libarcher, which informs ThreadSanitizer about the runtime's barriers.
  # GCC's runtime has no such library, so ThreadSanitizer reports a race for every parallel loop.
  get_filename_component(openmp_library "${OpenMP_omp_LIBRARY}" REALPATH)
  get_filename_component(openmp_folder "${openmp_library}" DIRECTORY)
  find_file(archer libarcher.so PATHS "${openmp_folder}" NO_DEFAULT_PATH NO_CACHE)
  if(NOT archer)
    message(FATAL_ERROR "TESSERA_SANITIZE=thread requires clang with libomp and its libarcher.so \
(Debian: apt install clang libomp-dev); looked in '${openmp_folder}'.")
  endif()
  list(APPEND tessera_test_environment "OMP_TOOL_LIBRARIES=${archer}"
       "TSAN_OPTIONS=ignore_noninstrumented_modules=1 die_after_fork=0")
endif()

# tessera_test_folder(FOLDER TIMEOUT LIBS...): tests/FOLDER/*_test.cpp, labelled with the folder.
function(tessera_test_folder folder timeout)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    set(target ${folder}_${stem})
    add_executable(${target} ${source})
    tessera_compile_settings(${target})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    # Halves the time to compile a test. The library and the oracle keep -O3.
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    target_link_libraries(${target} PRIVATE tessera_test_support ${tessera_archives} ${ARGN})
    add_test(NAME ${folder}.${stem} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${folder}.${stem} PROPERTIES
      LABELS ${folder} TIMEOUT ${timeout} SKIP_RETURN_CODE 77
      ENVIRONMENT "${tessera_test_environment}")
  endforeach()
endfunction()

# tessera_measuring_kernels(TARGET): compiles and checks the target's kernels like the library's.
function(tessera_measuring_kernels target)
  tessera_compile_settings(${target})
  get_target_property(options tessera_cuda COMPILE_OPTIONS)
  get_target_property(launcher tessera_cuda CUDA_COMPILER_LAUNCHER)
  string(REGEX REPLACE "^gpu_" "" name ${target})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} PREFIX ""
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests CUDA_RUNTIME_LIBRARY None
    CUDA_COMPILER_LAUNCHER "${launcher}")
  target_compile_options(${target} PRIVATE ${options})
endfunction()

# Kernels of python -m tessera.bench ceilings. Those that do not require Hopper run on any card.
function(tessera_ceilings)
  if(NOT tessera_has_sm90)
    message(STATUS "TESSERA_CUDA_ARCHITECTURES does not name 90: bench/ceilings is not built")
    return()
  endif()
  find_package(CUTLASS 4.2)
  if(NOT CUTLASS_FOUND)
    message(STATUS "No CUTLASS: bench/ceilings is not built")
    return()
  endif()
  set(folder bench/ceilings)
  add_library(gpu_ceilings MODULE
    ${folder}/l2.cu ${folder}/launch.cu ${folder}/memory.cu ${folder}/tensor.cu)
  tessera_measuring_kernels(gpu_ceilings)
  set_source_files_properties(${folder}/tensor.cu ${folder}/l2.cu
    PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm90}")
  set_source_files_properties(${folder}/memory.cu ${folder}/launch.cu
    PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm80};${tessera_gencode_sm90}")
  target_include_directories(gpu_ceilings PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(gpu_ceilings PRIVATE CUTLASS::headers CUDA::cudart_static)
endfunction()

# NVTX ranges, with and without the variable that enables them. A stand-in for a profiler records them.
# The tests need no GPU, and hide all GPUs.
function(tessera_nvtx_test)
  find_path(nvtx_include nvtx3/nvToolsExt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH
            NO_CACHE)
  if(NOT nvtx_include)
    return()
  endif()
  add_library(nvtx_recorder MODULE tests/nvtx/recorder.cpp)
  add_executable(nvtx_ranges_test tests/nvtx/ranges_test.cpp)
  foreach(target IN ITEMS nvtx_recorder nvtx_ranges_test)
    tessera_compile_settings(${target})
    set_target_properties(${target} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  endforeach()
  target_include_directories(nvtx_recorder SYSTEM PRIVATE ${nvtx_include})
  target_link_libraries(nvtx_ranges_test PRIVATE
    ${tessera_archives} GTest::gtest_main CUDA::cudart_static)
  foreach(value IN ITEMS 1 0)
    set(record ${PROJECT_BINARY_DIR}/tests/nvtx_ranges_${value}.txt)
    add_test(NAME nvtx.ranges_${value} COMMAND nvtx_ranges_test)
    set_tests_properties(nvtx.ranges_${value} PROPERTIES LABELS nvtx TIMEOUT 60
      ENVIRONMENT "TESSERA_NVTX=${value};CUDA_VISIBLE_DEVICES=;NVTX_RECORD=${record};\
NVTX_INJECTION64_PATH=$<TARGET_FILE:nvtx_recorder>")
  endforeach()
endfunction()

tessera_test_folder(unit 300 GTest::gtest_main)
tessera_test_folder(cpu 600 GTest::gtest_main)
tessera_test_folder(fuzz 900 GTest::gtest_main)
if(TESSERA_CUDA)
  # Without a GPU, their main returns the code that CTest reports as skipped.
  add_library(tessera_gpu_main STATIC tests/gpu/main.cpp)
  tessera_compile_settings(tessera_gpu_main)
  target_include_directories(tessera_gpu_main PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(tessera_gpu_main PUBLIC ${tessera_archives} GTest::gtest CUDA::cudart_static)
  tessera_test_folder(gpu 600 tessera_gpu_main)
  # What cuBLASLt is told, looked at by a fake in its place: no GPU is needed.
  find_path(cublaslt_include cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH NO_CACHE)
  if(cublaslt_include)
    tessera_test_folder(cublaslt 300 GTest::gtest_main CUDA::cudart_static)
  endif()
  # Not tests, but built next to them, for tools/gpu_check.py.
  add_executable(gpu_host_time bench/host_time.cu)
  tessera_measuring_kernels(gpu_host_time)
  set_source_files_properties(bench/host_time.cu
    PROPERTIES COMPILE_OPTIONS "${tessera_gencode_sm80};${tessera_gencode_sm90}")
  target_link_libraries(gpu_host_time PRIVATE ${tessera_archives} CUDA::cudart_static)
  tessera_ceilings()
  tessera_nvtx_test()
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER targets INCLUDE REGEX "^(gpu|nvtx|cublaslt)_")
  add_custom_target(tessera_gpu_tests DEPENDS ${targets})
endif()

# Every public header compiles alone, included twice, with only include/ on the include path.
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
     ${PROJECT_SOURCE_DIR}/include/tessera/*.hpp)
set(header_sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${PROJECT_BINARY_DIR}/headers/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include <${header}>\n#include <${header}>\n")
  list(APPEND header_sources ${source})
endforeach()
add_library(tessera_headers OBJECT ${header_sources})
tessera_compile_settings(tessera_headers)
set_target_properties(tessera_headers PROPERTIES
  INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/include)

# tessera_check(NAME COMMAND...): a check of the tree or of the build, with the label check.
function(tessera_check name)
  add_test(NAME check.${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(check.${name} PROPERTIES LABELS check TIMEOUT 300)
endfunction()
set(python ${Python3_EXECUTABLE} -B)

tessera_check(layers_self_test ${python} tools/check_layers.py --self-test)
tessera_check(layers ${python} tools/check_layers.py)
tessera_check(words_self_test ${python} tools/check_words.py --self-test)
tessera_check(words ${python} tools/check_words.py)
tessera_check(ptxas_self_test ${python} tools/check_ptxas.py --self-test)
tessera_check(version_self_test ${python} tools/check_version.py --self-test)
tessera_check(version ${python} tools/check_version.py)
tessera_check(results ${python} tools/check_results.py)
tessera_check(tables ${python} tools/tables.py --check)
tessera_check(docs_self_test ${python} tools/check_docs.py --self-test)
tessera_check(setup ${python} tests/install/setup_test.py)
tessera_check(find_cutlass ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
              -DWORK=${PROJECT_BINARY_DIR}/checks/cutlass -P tests/install/find_cutlass.cmake)
if(TESSERA_TOOL)
  # With nvcc, kernels in the pages are compiled too.
  set(docs_nvcc "")
  if(TESSERA_CUDA)
    set(docs_nvcc --nvcc ${CMAKE_CUDA_COMPILER})
  endif()
  tessera_check(docs ${python} tools/check_docs.py --build ${PROJECT_BINARY_DIR}
                --cxx ${CMAKE_CXX_COMPILER} ${docs_nvcc})
  foreach(name cli pattern demo python)
    tessera_check(tool_${name} ${python} tests/tool/${name}_test.py $<TARGET_FILE:tessera_tool>)
  endforeach()
endif()
if(NOT TESSERA_SANITIZE)
  tessera_check(exports ${python} tools/check_exports.py $<TARGET_FILE:tessera>)
  tessera_check(installed_consumer ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
                -DBUILD=${PROJECT_BINARY_DIR} -DWORK=${PROJECT_BINARY_DIR}/checks/install
                -DCXX=${CMAKE_CXX_COMPILER} -P tests/install/consumer.cmake)
endif()
if(TESSERA_CUDA)
  list(TRANSFORM row_sources REPLACE ".*/(.+)" "${PROJECT_BINARY_DIR}/rows/ptxas/\\1.o.ptxas"
       OUTPUT_VARIABLE reports)
  tessera_check(ptxas ${python} tools/check_ptxas.py ${reports})
  add_dependencies(tessera_gpu_tests tessera_machine_code)
  tessera_check(machine_code ${python} tools/machine_code.py check
                ${PROJECT_BINARY_DIR}/machine_code.json)
endif()
