// A child process with its output captured.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ringfill::cli {

struct ChildResult {
  int exit_code = -1;  // 128 + the signal when one ended it
  std::string out;
  std::string err;
};

// Started by the constructor; output goes to files, so that no pipe can fill. Not thread-safe.
class Child {
 public:
  // `environment` holds NAME=VALUE entries, all that it gets.
  Child(const std::string& program, const std::vector<std::string>& arguments,
        const std::string& input, const std::vector<std::string>& environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Signal(int signal);
  // Returns when standard output is `text`; false when it is not within 30 s.
  bool WaitForOut(const std::string& text) const;
  // Call once.
  ChildResult Wait();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
};

}  // namespace ringfill::cli
