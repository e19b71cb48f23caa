#include "tests/server/notify_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "gtest/gtest.h"
#include "server/text.h"
#include "tests/server/eventually.h"

namespace ringfill {
namespace {

std::string NewName() {
  static std::atomic<int> count = 0;
  return Concat("ringfill-notify-", getpid(), "-", ++count);
}

}  // namespace

NotifySocket::NotifySocket(std::string name) : name_(std::move(name)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  RF_CHECK(name_.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, name_.data(), name_.size());
  socklen_t length = offsetof(sockaddr_un, sun_path) + name_.size();
  if (name_[0] == '@') {
    address.sun_path[0] = '\0';
  } else {
    unlink(name_.c_str());
    ++length;
  }
  fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  RF_CHECK(fd_ >= 0 && bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
}

NotifySocket::~NotifySocket() {
  close(fd_);
  if (name_[0] == '/') unlink(name_.c_str());
}

std::string NotifySocket::NewPath() { return testing::TempDir() + NewName(); }
std::string NotifySocket::NewAbstractName() { return Concat("@", NewName()); }

std::string NotifySocket::Next(Duration limit) {
  pollfd ready{fd_, POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  if (poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, ms))) != 1) return "";
  char buffer[4096];
  const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
  return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
}

bool NotifySocket::AwaitLine(const std::string& wanted) {
  const auto end = std::chrono::steady_clock::now() + kHangLimit;
  while (true) {
    const std::string message = Next(end - std::chrono::steady_clock::now());
    if (message.empty()) return false;
    if (HasLine(message, wanted)) return true;
  }
}

std::vector<std::string> NotifySocket::Within(Duration time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::vector<std::string> messages;
  while (true) {
    std::string message = Next(end - std::chrono::steady_clock::now());
    if (message.empty()) return messages;
    messages.push_back(std::move(message));
  }
}

bool HasLine(const std::string& message, const std::string& start) {
  std::istringstream in(message);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, start.size(), start) == 0) return true;
  }
  return false;
}

}  // namespace ringfill
