# Libraries that use CUDA, built against tests/cuda_emulation to run on the CPU.

# ringfill_emulated_library(NAME): NAME_emulated from what ringfill_cuda_library(NAME ...) was given.
# Libraries among its DEPS that use CUDA are replaced by their emulated ones. Called outside the
# folder of that library, since a .cu file has one language in a folder.
function(ringfill_emulated_library name)
  get_property(sources GLOBAL PROPERTY ringfill_cuda_sources_${name})
  get_property(deps GLOBAL PROPERTY ringfill_cuda_deps_${name})
  set(emulated_deps "")
  foreach(dep IN LISTS deps)
    get_property(uses_cuda GLOBAL PROPERTY ringfill_cuda_sources_${dep} SET)
    list(APPEND emulated_deps ${dep}$<$<BOOL:${uses_cuda}>:_emulated>)
  endforeach()
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  add_library(${name}_emulated STATIC ${sources})
  target_link_libraries(${name}_emulated PRIVATE ringfill_compiler
                        PUBLIC ${emulated_deps} ringfill_cuda_emulation)
  target_include_directories(${name}_emulated PUBLIC ${PROJECT_SOURCE_DIR})
  ringfill_emulated_kernels(${kernels})
endfunction()

# The .cu files, of whatever target of this folder, are C++ with every access instrumented.
function(ringfill_emulated_kernels)
  set(options -O2)
  if(RINGFILL_SANITIZE MATCHES "thread")
    # The real thread sanitizer would take the fibers of one OS thread for racing ones.
    list(APPEND options -fno-sanitize=all)
  elseif(NOT RINGFILL_SANITIZE)
    # Without its runtime: execution/race_hooks.cc is called instead.
    list(APPEND options -fsanitize=thread)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      list(APPEND options "SHELL:-mllvm -tsan-instrument-func-entry-exit=0")
    else()
      list(APPEND options --param=tsan-instrument-func-entry-exit=0)
    endif()
  endif()
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
endfunction()
