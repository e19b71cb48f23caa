// A service manager's end of NOTIFY_SOCKET.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace ringfill {

class NotifySocket {
 public:
  // `name`: as NOTIFY_SOCKET has it. Aborts when it cannot be bound.
  explicit NotifySocket(std::string name);
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // A path in the tests' folder, or an abstract name, that no other test has.
  static std::string NewPath();
  static std::string NewAbstractName();

  const std::string& name() const { return name_; }
  // The next message; empty when none comes within `limit`.
  std::string Next(Duration limit);
  // Reads on until a message has the line `wanted`; false when none has by the hang limit.
  bool AwaitLine(const std::string& wanted);
  // The messages that come within `time`.
  std::vector<std::string> Within(Duration time);

 private:
  const std::string name_;
  int fd_ = -1;
};

// Does one of the lines of a message start so?
bool HasLine(const std::string& message, const std::string& start);

}  // namespace ringfill
