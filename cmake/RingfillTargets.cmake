# ringfill_precompile(TARGET): what nearly every file includes comes from one precompiled header.
# Headers of this tree stay out of it: a change in one would compile everything again. Builds
# without it (release) find the includes that a file forgot.
function(ringfill_precompile target)
  if(NOT RINGFILL_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET ringfill_precompiled)
    set(empty ${PROJECT_BINARY_DIR}/precompiled.cc)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")
    add_library(ringfill_precompiled OBJECT ${empty})
    target_link_libraries(ringfill_precompiled PRIVATE
      ringfill_compiler absl::flat_hash_map absl::statusor absl::str_format absl::synchronization
      nlohmann_json::nlohmann_json prometheus-cpp::core spdlog::spdlog GTest::gmock GTest::gtest)
    target_precompile_headers(ringfill_precompiled PRIVATE
      ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # The same bytes each time, for ccache.
      target_compile_options(ringfill_precompiled PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ringfill_precompiled)
endfunction()

# ringfill_library(NAME SRCS a.cc ... DEPS lib ... [ALONE b.cc ...] [HOT]): one library of the tree.
# A library without sources is header-only. Sanitized builds compile the sources of a target as one
# file; ALONE names those that cannot take part, having names or options of their own. HOT: tests
# spend their time here, so sanitized builds optimise it as much as others.
function(ringfill_library name)
  cmake_parse_arguments(ARG "HOT" "" "SRCS;DEPS;ALONE" ${ARGN})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PRIVATE ringfill_compiler PUBLIC ${ARG_DEPS})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
    ringfill_precompile(${name})
    if(ARG_HOT AND RINGFILL_SANITIZE)
      target_compile_options(${name} PRIVATE -O2)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

# ringfill_test(NAME SRCS a_test.cc ... DEPS lib ... [ALONE b_test.cc ...] [LABELS l ...]
# [TIMEOUT seconds] [FILTER filter] [SANITIZED_FILTER filter] [THREADS_FILTER filter]): one
# GoogleTest program, known to ctest as a single test. FILTER says which of many alike cases run;
# SANITIZED_FILTER which do in sanitized builds, which are ten times as slow. The label serial says
# that the thread sanitizer has nothing to see there, since no case starts a thread of its own; its
# tree leaves the program out. THREADS_FILTER says which cases start threads, where few do.
function(ringfill_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;FILTER;SANITIZED_FILTER;THREADS_FILTER"
                        "SRCS;DEPS;ALONE;LABELS" ${ARGN})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ringfill_compiler ${ARG_DEPS} GTest::gmock GTest::gtest
                                        GTest::gtest_main)
  ringfill_precompile(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  set(filter "${ARG_FILTER}")
  if(RINGFILL_SANITIZE)
    set(filter "${ARG_SANITIZED_FILTER}")
  endif()
  if(RINGFILL_SANITIZE STREQUAL "thread")
    if("serial" IN_LIST ARG_LABELS)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
      set_tests_properties(${name} PROPERTIES DISABLED ON)
    endif()
    if(ARG_THREADS_FILTER)
      set(filter "${ARG_THREADS_FILTER}")
    endif()
  endif()
  if(filter)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=${filter}")
  endif()
endfunction()

# ringfill_python_test(NAME LABEL label TIMEOUT seconds [SERIAL] [WITH wrapper.py] [ARGUMENTS a ...]
# [ENVIRONMENT NAME=value ...] [CONFIGURATIONS c ...]): runs the folder's NAME.py, by the wrapper where one
# is given, as the test FOLDER_NAME. Exit code 77 is a visible skip. SERIAL: beside no other test.
function(ringfill_python_test name)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  cmake_parse_arguments(ARG "SERIAL" "LABEL;TIMEOUT;WITH" "ARGUMENTS;ENVIRONMENT;CONFIGURATIONS" ${ARGN})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(scripts ${ARG_WITH} ${name}.py)
  list(TRANSFORM scripts PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(configurations "")
  if(ARG_CONFIGURATIONS)
    set(configurations CONFIGURATIONS ${ARG_CONFIGURATIONS})
  endif()
  add_test(NAME ${folder}_${name} ${configurations}
    COMMAND Python3::Interpreter ${scripts} ${ARG_ARGUMENTS})
  set(environment RINGFILL_BIN_DIR=${CMAKE_BINARY_DIR}/bin PYTHONDONTWRITEBYTECODE=1 ${ARG_ENVIRONMENT})
  set_tests_properties(${folder}_${name} PROPERTIES
    ENVIRONMENT "${environment}" LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT}
    RUN_SERIAL ${ARG_SERIAL} SKIP_RETURN_CODE 77)
endfunction()
