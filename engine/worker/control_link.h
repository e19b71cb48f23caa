// One end of the connection between leader and worker: a thread that reads, a thread that sends and
// keeps the heart beating, so that a peer which is gone, stopped or cut off shows within the
// silence limit however busy its compute threads are.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/comm/tcp/connection.h"
#include "engine/comm/tcp/heartbeat.h"
#include "engine/worker/control_message.h"

namespace ringfill {

inline constexpr Duration kDefaultHeartbeatTimeout = std::chrono::seconds(3);

// Send, Finish and Close: any thread; none of them waits.
class ControlLink {
 public:
  static constexpr size_t kMaxQueued = 1024;
  static constexpr size_t kMaxQueuedBytes = size_t{64} << 20;

  // Both are called by the reading thread, never at the same time, and must not destroy the link.
  struct Handler {
    std::function<void(ControlMessage)> on_message;  // all but BEAT
    // Once, and last: UNAVAILABLE when the peer is gone or silent, DATA_LOSS for what is no
    // message, or what Close was given.
    std::function<void(const absl::Status&)> on_end;
  };

  // `clock`: of the silence alone; outlives the link.
  ControlLink(std::unique_ptr<Connection> connection, Duration silence_limit, Handler handler,
              const Clock& clock = Clock::Real());
  // Closes. Not from a handler.
  ~ControlLink();

  // Starts the threads. Once.
  void Start();

  // Never waits for the peer: what the socket does not take at once waits for the sending thread,
  // at most kMaxQueued messages and, beyond one, kMaxQueuedBytes. A peer that lets more pile up is
  // gone: the link ends with RESOURCE_EXHAUSTED. Dropped when the link has ended.
  void Send(const ControlMessage& message);
  void Send(std::shared_ptr<const EncodedControl> message);
  // Sends what waits, and `last` after it, and ends the link when the peer has closed it too, or
  // `patience` later. What comes meanwhile is dropped, but read: bytes that nobody has read when
  // the socket closes would reset the connection, and the peer would lose what is on its way to it.
  // The destructor waits for this. REQUIRES: !why.ok().
  void Finish(const ControlMessage& last, const absl::Status& why, Duration patience);
  // At once. The first reason counts, that of Finish too. REQUIRES: !why.ok().
  void Close(const absl::Status& why);

  void SetSilenceLimit(Duration limit) { silence_limit_ = limit; }
  // How far our clock was ahead of the peer's, at most: its beats' way included; 0 before the first
  // one.
  Duration clock_ahead() const { return std::chrono::nanoseconds(clock_ahead_ns_.load()); }
  // The link ended because the peer said nothing.
  bool silent() const { return silent_; }

 private:
  struct Finishing {
    absl::Status why;
    Instant limit;
  };

  void ReadLoop();
  void SendLoop();
  absl::Status ReadOne();
  std::optional<Finishing> finishing();
  // How soon to look again whether the peer is silent.
  Duration LookPeriod() const;
  // An error when the peer is silent. `message`: one was read.
  absl::Status LookAtSilence(bool message);
  void NoteBeat(const BeatMessage& beat);
  // By the sending thread: what waits, else the message, else a beat.
  absl::StatusOr<bool> SendOne(bool rest, std::shared_ptr<const EncodedControl> message);
  // The line is free again; false: the connection keeps bytes that wait.
  void Sent(const absl::StatusOr<bool>& whole);

  const std::unique_ptr<Connection> connection_;
  const Handler handler_;
  const Clock& clock_;
  std::atomic<Duration> silence_limit_;
  std::atomic<int64_t> clock_ahead_ns_{0};
  std::atomic<bool> silent_{false};

  // The reading thread's.
  Silence silence_;
  Instant look_due_;
  int64_t bytes_heard_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<const EncodedControl>> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;  // a thread uses the line
  bool rest_ ABSL_GUARDED_BY(mutex_) = false;     // the connection keeps bytes that wait
  std::optional<Finishing> finishing_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);

  std::thread reader_, sender_;
};

}  // namespace ringfill
