// While it lives, no file of this process may grow beyond some bytes (RLIMIT_FSIZE): a disk that is
// full there.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "base/check.h"

namespace ringfill {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    RF_CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit = {bytes, before_.rlim_max};
    RF_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    RF_CHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*const handler_)(int);
};

}  // namespace ringfill
