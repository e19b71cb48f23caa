// The only way into the engine: a bounded queue of requests that wait for the leader, and the count
// of all that live.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/request/generation.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

// Thread-safe. Callers Reserve and Put; the leader Takes, and says what became of each.
class Inbox {
 public:
  struct Arrival {
    SequenceId id;
    std::unique_ptr<Generation> generation;
  };
  struct Counts {
    int64_t queued = 0;   // not admitted yet, here or in the scheduler
    int64_t running = 0;  // admitted
    bool draining = false;
  };

  explicit Inbox(int64_t max_queued) : max_queued_(max_queued) {}

  // ---- callers
  // A place in the queue: how many are ahead. UNAVAILABLE when draining, RESOURCE_EXHAUSTED when
  // full. Put must follow.
  absl::StatusOr<int64_t> Reserve();
  void Put(std::unique_ptr<Generation> generation);
  // Refuses new requests from now on.
  void BeginDrain();
  // Waits until nothing lives, at most until `until`. True when empty.
  bool WaitIdle(Instant until);
  Counts counts() const;
  // When the oldest request that the leader has not taken came.
  std::optional<Instant> oldest() const;

  // ---- the leader
  // Waits until there is an arrival, at most until `until` when given. False when stopped.
  bool AwaitArrival(const Instant* until);
  std::vector<Arrival> Take();
  void NoteAdmitted(int64_t count);
  void NoteRequeued(int64_t count);  // admitted ones wait again
  void NoteEnded(bool was_queued);
  // From any thread: drains and makes AwaitArrival return false.
  void Stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  const int64_t max_queued_;
  mutable Mutex mutex_;
  CondVar arrived_, idle_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  SequenceId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t living_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopped_{false};
};

}  // namespace ringfill
