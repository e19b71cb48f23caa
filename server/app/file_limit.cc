#include "server/app/file_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

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

void FillStandardFiles() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free one is what open gives.
    if (fcntl(fd, F_GETFD) < 0) std::ignore = open("/dev/null", O_RDWR);
  }
}

}  // namespace ringfill
