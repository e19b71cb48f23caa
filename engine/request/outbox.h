// The only way out of the engine: a bounded queue of one request's events. The engine pushes, one
// consumer pops. A full outbox pauses its request; nobody ever spins on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "engine/request/event.h"

namespace ringfill {

// Thread-safe. Shared by the engine (producer) and the RPC (consumer).
class Outbox {
 public:
  // `capacity` bounds the token events that wait. `on_ready` runs on the producer's thread, without
  // locks, each time an event arrives while the consumer had found the outbox empty; it must be
  // quick and must not call into the engine. It never runs after Close returned.
  Outbox(size_t capacity, std::function<void()> on_ready);

  // Consumer. Next event, or nothing: then on_ready will run when there is one.
  std::optional<RequestEvent> TryPop();
  // Consumer is gone: asks the engine to cancel; later pushes are dropped and on_ready is not
  // called again. Waits for an on_ready that runs on another thread; may be called from on_ready.
  void Close();

  // Producer. Accepted, Done and Failed are always taken; a Progress that was not popped yet is
  // replaced by the newer one. REQUIRES for tokens: !full().
  void Push(RequestEvent event);
  // Producer. True when no further token fits.
  bool full() const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  // Puts the event into the queue; true when the consumer waits for it.
  bool Enqueue(RequestEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;
  const std::function<void()> on_ready_;
  mutable Mutex mutex_;
  std::deque<RequestEvent> events_ ABSL_GUARDED_BY(mutex_);
  size_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // token events among them
  bool consumer_waits_ ABSL_GUARDED_BY(mutex_) = true;
  // The thread that runs on_ready, none when it does not run.
  std::thread::id callback_thread_ ABSL_GUARDED_BY(mutex_);
  CondVar callback_returned_;
  std::atomic<bool> closed_{false};
};

}  // namespace ringfill
