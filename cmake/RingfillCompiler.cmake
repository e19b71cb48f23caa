# Compiler settings that every target shares.

find_program(RINGFILL_CCACHE ccache)
if(RINGFILL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${RINGFILL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RINGFILL_CCACHE})
  if(RINGFILL_PRECOMPILE)
    # Without these ccache never answers for a file that includes a precompiled header.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros ${RINGFILL_CCACHE})
  endif()
endif()

add_library(ringfill_compiler INTERFACE)
target_compile_options(ringfill_compiler INTERFACE -Wall -Wextra -Werror)
target_include_directories(ringfill_compiler INTERFACE ${PROJECT_SOURCE_DIR})
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(ringfill_compiler INTERFACE -Wthread-safety)
endif()
if(RINGFILL_SANITIZE)
  # Compiling takes longer than testing: -O1 and line numbers alone halve it. -fPIC, also for
  # programs, so that one precompiled header serves all.
  add_compile_options(-fsanitize=${RINGFILL_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all -O1 -g1 -fPIC)
  add_link_options(-fsanitize=${RINGFILL_SANITIZE})
endif()
