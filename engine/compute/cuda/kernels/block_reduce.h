// Device code: one value from all threads of a block.
#pragma once

#include "engine/compute/cuda/device_code.h"

namespace ringfill::gpu {

struct SumOp {
  template <typename T>
  RF_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxOp {
  template <typename T>
  RF_DEVICE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// op over all kThreads threads, the same for each of them, in a fixed order. `scratch`: shared,
// kThreads / 32 values; it may be used again at once.
template <int kThreads, typename T, typename Op>
RF_DEVICE T BlockReduce(T value, Op op, T* scratch) {
  RF_UNROLL
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    value = op(value, ShuffleXor(value, lanes));
  }
  if (LaneId() == 0) scratch[WarpId()] = value;
  SyncThreads();
  T total = scratch[0];
  RF_UNROLL
  for (int warp = 1; warp < kThreads / kWarpLanes; ++warp) total = op(total, scratch[warp]);
  SyncThreads();
  return total;
}

}  // namespace ringfill::gpu
