# Whether and how GPUs are supported.
#
#   RINGFILL_CUDA  AUTO      the CUDA backend where the toolkit, cuBLASLt and NCCL are found, new enough
#                  ON        the same, and an error where they are not
#                  EMULATED  no CUDA backend, even where it could be built
#                  OFF       nothing of it, the emulation in the tests neither
#
#   RINGFILL_CUDNN  AUTO  prefill attention of cuDNN 9.15 or newer where it is found
#                   ON    the same, and an error where it is not
#                   OFF   our own kernels alone
#
#   RINGFILL_GPU_TESTS  ON   tests of kernels and ranks are built for real GPUs too (tools/gpu_check.sh)
#
# Sets RINGFILL_HAVE_CUDA and RINGFILL_HAVE_CUDNN. Kernels run on the CPU in the tests of every build that has tests, unless
# OFF: see tests/cuda_emulation.

set(RINGFILL_CUDA AUTO CACHE STRING "GPUs: AUTO, ON, OFF or EMULATED (in tests alone)")
set_property(CACHE RINGFILL_CUDA PROPERTY STRINGS AUTO ON OFF EMULATED)
set(RINGFILL_CUDNN AUTO CACHE STRING "cuDNN's attention on GPUs: AUTO, ON or OFF")
set_property(CACHE RINGFILL_CUDNN PROPERTY STRINGS AUTO ON OFF)
option(RINGFILL_GPU_TESTS "Build the tests for real GPUs too" OFF)
if(NOT RINGFILL_CUDNN MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "RINGFILL_CUDNN is ${RINGFILL_CUDNN}; it may be AUTO, ON or OFF")
endif()
if(NOT RINGFILL_CUDA MATCHES "^(AUTO|ON|OFF|EMULATED)$")
  message(FATAL_ERROR "RINGFILL_CUDA is ${RINGFILL_CUDA}; it may be AUTO, ON, OFF or EMULATED")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/RingfillNccl.cmake)

set(RINGFILL_HAVE_CUDA OFF)
set(RINGFILL_CUDA_MISSING "")
# The sanitizers' builds run the kernels on the CPU.
if(RINGFILL_CUDA STREQUAL "ON" OR (RINGFILL_CUDA STREQUAL "AUTO" AND NOT RINGFILL_SANITIZE))
  find_package(CUDAToolkit QUIET)
  find_path(RINGFILL_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(RINGFILL_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    list(APPEND RINGFILL_CUDA_MISSING "the CUDA toolkit (nvcc)")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.8)
    list(APPEND RINGFILL_CUDA_MISSING "a CUDA toolkit from 12.8 on (this one is ${CUDAToolkit_VERSION})")
  elseif(NOT TARGET CUDA::cublasLt)
    list(APPEND RINGFILL_CUDA_MISSING "cuBLASLt")
  endif()
  if(NOT RINGFILL_NCCL_INCLUDE OR NOT RINGFILL_NCCL_LIBRARY)
    list(APPEND RINGFILL_CUDA_MISSING "NCCL")
  else()
    ringfill_check_nccl(${RINGFILL_NCCL_INCLUDE}/nccl.h RINGFILL_NCCL_TOO_OLD)
    list(APPEND RINGFILL_CUDA_MISSING ${RINGFILL_NCCL_TOO_OLD})
  endif()
  list(JOIN RINGFILL_CUDA_MISSING " and " RINGFILL_CUDA_MISSING)
  if(NOT RINGFILL_CUDA_MISSING)
    set(RINGFILL_HAVE_CUDA ON)
  elseif(RINGFILL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RINGFILL_CUDA=ON needs ${RINGFILL_CUDA_MISSING}; install it, "
                        "or point CUDAToolkit_ROOT and RINGFILL_NCCL_LIBRARY to it")
  else()
    message(STATUS "No CUDA backend: missing ${RINGFILL_CUDA_MISSING}")
  endif()
endif()

set(RINGFILL_HAVE_CUDNN OFF)
if(RINGFILL_HAVE_CUDA AND NOT RINGFILL_CUDNN STREQUAL "OFF")
  find_path(RINGFILL_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(RINGFILL_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(RINGFILL_CUDNN_INCLUDE AND RINGFILL_CUDNN_LIBRARY)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${RINGFILL_CUDNN_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    set(CMAKE_REQUIRED_LIBRARIES ${RINGFILL_CUDNN_LIBRARY})
    # The one operation that is the whole of attention, page tables and lengths included.
    check_cxx_source_compiles("
      #include <cudnn.h>
      static_assert(CUDNN_VERSION >= 91500);
      int main() {
        return CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC + CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC +
               static_cast<int>(cudnnGetVersion());
      }" RINGFILL_CUDNN_FITS)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_LIBRARIES)
    set(RINGFILL_HAVE_CUDNN ${RINGFILL_CUDNN_FITS})
  endif()
  if(RINGFILL_HAVE_CUDNN)
    # It loads its large parts when the first GPU asks for them.
    add_library(ringfill_cudnn_library INTERFACE)
    target_include_directories(ringfill_cudnn_library SYSTEM INTERFACE ${RINGFILL_CUDNN_INCLUDE})
    target_link_libraries(ringfill_cudnn_library INTERFACE ${RINGFILL_CUDNN_LIBRARY})
  elseif(RINGFILL_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "RINGFILL_CUDNN=ON needs cuDNN 9.15 or newer with headers; install it, "
                        "or point RINGFILL_CUDNN_INCLUDE and RINGFILL_CUDNN_LIBRARY to it")
  else()
    message(STATUS "Prefill attention on GPUs by our own kernels alone: no cuDNN from 9.15 on")
  endif()
endif()

if(RINGFILL_GPU_TESTS AND NOT RINGFILL_HAVE_CUDA)
  message(FATAL_ERROR "RINGFILL_GPU_TESTS=ON needs RINGFILL_CUDA=ON")
endif()

# Explicit pairs: the architecture-specific 90a has no place in CMAKE_CUDA_ARCHITECTURES of this CMake.
# The last entry is PTX for what comes later.
set(RINGFILL_CUDA_GENCODE
  -gencode=arch=compute_80,code=sm_80
  -gencode=arch=compute_90a,code=sm_90a
  -gencode=arch=compute_100,code=sm_100
  -gencode=arch=compute_100,code=compute_100)

if(RINGFILL_HAVE_CUDA)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  enable_language(CUDA)
  # nvcc knows C++20, which this CMake does not know of it.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  if(RINGFILL_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${RINGFILL_CCACHE})
  endif()
  add_library(ringfill_nccl_library INTERFACE)
  target_include_directories(ringfill_nccl_library SYSTEM INTERFACE ${RINGFILL_NCCL_INCLUDE})
  target_link_libraries(ringfill_nccl_library INTERFACE ${RINGFILL_NCCL_LIBRARY} CUDA::cudart)
endif()

# ringfill_cuda_library(NAME SRCS a.cu b.cc ... DEPS lib ...): a library that uses CUDA. Built for GPUs
# where there is a toolkit; ringfill_emulated_library(NAME) builds NAME_emulated from the same files.
function(ringfill_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  list(TRANSFORM ARG_SRCS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL PROPERTY ringfill_cuda_sources_${name} ${ARG_SRCS})
  set_property(GLOBAL PROPERTY ringfill_cuda_deps_${name} ${ARG_DEPS})
  if(NOT RINGFILL_HAVE_CUDA)
    return()
  endif()
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} CUDA::cudart)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall$<SEMICOLON>-Wextra$<SEMICOLON>-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings$<SEMICOLON>${RINGFILL_CUDA_GENCODE}>)
endfunction()

# ringfill_gpu_test(NAME SRCS a_test.cc ... DEPS lib ...): a test program on real GPUs, skipped where
# there is none; nothing without RINGFILL_GPU_TESTS.
function(ringfill_gpu_test name)
  if(NOT RINGFILL_GPU_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/tests/testing/gpu_test_main.cc)
  target_link_libraries(${name} PRIVATE ringfill_compiler ${ARG_DEPS} CUDA::cudart GTest::gmock
                                        GTest::gtest)
  add_test(NAME ${name} COMMAND ${name})
  # They share the GPUs' memory.
  set_tests_properties(${name} PROPERTIES LABELS gpu SKIP_RETURN_CODE 77 RUN_SERIAL ON TIMEOUT 300)
endfunction()
