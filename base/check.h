// RF_CHECK aborts with the condition and place when our own code broke a promise. Never used on
// data from outside the process: that gets an absl::Status.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ringfill {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ringfill

#define RF_CHECK(condition)                                    \
  do {                                                         \
    if (!(condition)) [[unlikely]] {                           \
      ::ringfill::CheckFailed(#condition, __FILE__, __LINE__); \
    }                                                          \
  } while (false)

#ifdef NDEBUG
#define RF_DCHECK(condition) \
  do {                       \
    (void)sizeof(condition); \
  } while (false)
#else
#define RF_DCHECK(condition) RF_CHECK(condition)
#endif
