// What a service manager (systemd, Type=notify) wants to hear of its service: datagrams to the
// socket that NOTIFY_SOCKET names. The protocol is stable and documented in sd_notify(3).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace ringfill {

// Thread-safe. What cannot be sent is logged once and otherwise ignored: a service runs on without
// its manager.
class ServiceManager {
 public:
  // `socket`: a path, or a name in the abstract namespace with a leading @; empty is no manager.
  // `watchdog`: it wants a sign of life within each such time.
  explicit ServiceManager(std::string socket, std::optional<Duration> watchdog = std::nullopt)
      : socket_(std::move(socket)), watchdog_(watchdog) {}
  // As NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say. Removes them, so that processes started
  // from here do not speak for this one. REQUIRES: no other thread yet.
  static ServiceManager FromEnvironment();

  bool present() const { return !socket_.empty(); }
  const std::optional<Duration>& watchdog() const { return watchdog_; }

  // "READY=1" or other assignments, one a line. Waits at most kSendLimit for a manager that does
  // not read. False when it was not sent.
  bool Notify(std::string_view assignments) const;
  // STATUS=: one line for people, of `systemctl status`.
  bool NotifyStatus(std::string_view text) const;

  static constexpr Duration kSendLimit = std::chrono::seconds(1);

 private:
  void NoteFailure(std::string_view what) const;

  const std::string socket_;
  const std::optional<Duration> watchdog_;
  mutable Mutex mutex_;
  mutable bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

// `text` without what would end a STATUS= line.
std::string OneLine(std::string_view text);

}  // namespace ringfill
