#include "server/app/service_manager.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "base/log.h"
#include "server/text.h"

namespace ringfill {
namespace {

std::string TakeVariable(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

// 0 when it is not what a descriptor can be connected to.
socklen_t FillAddress(const std::string& socket, sockaddr_un& address) {
  if (socket.size() < 2 || (socket[0] != '/' && socket[0] != '@')) return 0;
  if (socket.size() >= sizeof(address.sun_path)) return 0;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  // Abstract names end with the length, paths with a zero.
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size() +
                                (socket[0] == '/' ? 1 : 0));
}

timeval ToTimeval(Duration d) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(d).count();
  return {.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
}

constexpr int64_t kLongestWatchdogUs = int64_t{1} << 50;  // 35 years, which nanoseconds hold

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  std::string socket = TakeVariable("NOTIFY_SOCKET");
  const std::string usec = TakeVariable("WATCHDOG_USEC");
  const std::string pid = TakeVariable("WATCHDOG_PID");
  std::optional<Duration> watchdog;
  int64_t us = 0, for_pid = 0;
  const bool for_us = pid.empty() || (absl::SimpleAtoi(pid, &for_pid) && for_pid == getpid());
  if (for_us && absl::SimpleAtoi(usec, &us) && us > 0) {
    watchdog = std::chrono::microseconds(std::min(us, kLongestWatchdogUs));
  }
  return ServiceManager(std::move(socket), watchdog);
}

bool ServiceManager::Notify(std::string_view assignments) const {
  if (!present()) return false;
  sockaddr_un address{};
  const socklen_t length = FillAddress(socket_, address);
  if (length == 0) {
    NoteFailure("neither a short absolute path nor an abstract name");
    return false;
  }
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const timeval limit = ToTimeval(kSendLimit);
  const bool sent = fd >= 0 &&
                    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
                    sendto(fd, assignments.data(), assignments.size(), MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(&address),
                           length) == static_cast<ssize_t>(assignments.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!sent) NoteFailure(strerror(error));
  return sent;
}

bool ServiceManager::NotifyStatus(std::string_view text) const {
  return Notify(Concat("STATUS=", OneLine(text)));
}

void ServiceManager::NoteFailure(std::string_view what) const {
  MutexLock lock(&mutex_);
  if (std::exchange(failed_, true)) return;
  Log(LogLevel::kWarning, "the service manager cannot be told how this service fares",
      {{"NOTIFY_SOCKET", socket_}, {"error", std::string(what)}});
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return line;
}

}  // namespace ringfill
