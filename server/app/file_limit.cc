#include "server/app/file_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/log.h"

namespace ringfill {

uint64_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t wanted = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, kMostFiles));
  if (wanted > limit.rlim_cur) {
    const rlimit raised = {.rlim_cur = wanted, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur < kEnoughFiles) {
    Log(LogLevel::kWarning,
        "few files can be open at once: many clients could use them up and no new connection would "
        "be accepted until a restart; raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd)",
        {{"limit", limit.rlim_cur}, {"enough", kEnoughFiles}});
  }
  return limit.rlim_cur;
}

}  // namespace ringfill
