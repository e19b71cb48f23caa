#include "engine/stream/trace.h"

#include <utility>

namespace ringfill {

void TraceBuffer::Add(const TraceSpan& span) {
  if (!enabled()) return;
  MutexLock lock(&mutex_);
  if (spans_.size() >= capacity_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  spans_.push_back(span);
}

std::vector<TraceSpan> TraceBuffer::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(spans_, {});
}

}  // namespace ringfill
