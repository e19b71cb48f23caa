// The only way out of the engine: a bounded queue of one request's events. The engine pushes, one
// consumer pops. A full outbox pauses its request; nobody ever spins on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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
  std::optional<Event> TryPop();
  // Consumer is gone: asks the engine to cancel; later pushes are dropped and on_ready is not
  // called again.
  void Close();

  // Producer. Accepted, Done and Failed are always taken; a Progress that was not popped yet is
  // replaced by the newer one. REQUIRES for tokens: !full().
  void Push(Event event);
  // Producer. True when no further token fits.
  bool full() const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool consumer_waits_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Mutex callback_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::function<void()> on_ready_ ABSL_GUARDED_BY(callback_mutex_);
  std::atomic<bool> closed_{false};
};

}  // namespace ringfill
