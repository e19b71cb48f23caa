# ringfill_library(NAME SRCS a.cc ... DEPS lib ...): one library of the tree. A library without
# sources is header-only.
function(ringfill_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PRIVATE ringfill_compiler PUBLIC ${ARG_DEPS})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

# ringfill_test(NAME SRCS a_test.cc ... DEPS lib ... [LABELS l ...] [TIMEOUT seconds]
# [SANITIZED_FILTER filter]): one GoogleTest program, known to ctest as a single test. The filter
# says which of many alike cases run in sanitized builds, which are ten times as slow.
function(ringfill_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;SANITIZED_FILTER" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ringfill_compiler ${ARG_DEPS} GTest::gmock GTest::gtest
                                        GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(RINGFILL_SANITIZE AND ARG_SANITIZED_FILTER)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=${ARG_SANITIZED_FILTER}")
  endif()
endfunction()
