// A program run as a child process: its standard output can be read line by line while it runs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ringfill {

// Not thread-safe. The destructor kills what still runs.
class Subprocess {
 public:
  // Inherits the environment.
  explicit Subprocess(const std::vector<std::string>& command);
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // The next line of standard output, without its end; empty at the end of the output.
  std::string ReadLine();
  void Signal(int signal);
  // Exit code, or 128 + the signal that ended it. Reads the rest of standard output first.
  int Wait();
  // What standard output held after the lines that ReadLine gave. Valid after Wait.
  const std::string& rest_of_output() const { return buffer_; }
  // All of standard error so far.
  std::string Errors() const;

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string buffer_;
};

}  // namespace ringfill
