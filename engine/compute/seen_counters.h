// Counts of attention that the threads of a device share.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/compute/batch.h"

namespace ringfill {

// Thread-safe.
struct SeenCounters {
  std::atomic<int64_t> pairs{0}, merged_states{0}, empty_states{0};

  void Add(const SeenKeys& seen) {
    pairs.fetch_add(seen.pairs, std::memory_order_relaxed);
    merged_states.fetch_add(seen.merged_states, std::memory_order_relaxed);
    empty_states.fetch_add(seen.empty_states, std::memory_order_relaxed);
  }
  void TakeInto(WorkCounters& out) {
    out.attention_pairs = pairs.exchange(0);
    out.merged_states = merged_states.exchange(0);
    out.empty_states = empty_states.exchange(0);
  }
};

}  // namespace ringfill
