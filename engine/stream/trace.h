// What ran when on a rank: a bounded record of operations, for the Perfetto trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/stream/op_label.h"

namespace ringfill {

enum class TraceLane : uint8_t { kCompute, kComm, kMemory };
inline constexpr int kTraceLanes = 3;

struct TraceSpan {
  OpLabel label;
  TraceLane lane = TraceLane::kCompute;
  Instant begin, end;
};

// Thread-safe: the lanes of one rank add to it. Costs one atomic read while it is off.
class TraceBuffer {
 public:
  explicit TraceBuffer(size_t capacity = 1 << 16) : capacity_(capacity) {}

  void Enable(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Drops the span when full, and counts it.
  void Add(const TraceSpan& span);
  // Everything since the last call.
  std::vector<TraceSpan> Take();
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  const size_t capacity_;
  std::atomic<bool> enabled_{false};
  std::atomic<int64_t> dropped_{0};
  Mutex mutex_;
  std::vector<TraceSpan> spans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ringfill
