// The injected faults and the counts of nccl_emulation.h.
#pragma once

#include <nccl.h>

#include <array>
#include <string>

#include "base/mutex.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"

namespace ringfill::cuda_emulation {

// Thread-safe; takes no other lock.
class NcclFaults {
 public:
  static NcclFaults& Get();

  void Reset();
  void Hold(int device, bool held);
  bool IsHeld(int device);
  void Break(int device, bool broken);
  bool IsBroken(int device);
  void SetVersion(int version);
  int version();
  void Separate();
  bool AreSeparate();
  void HangAborts(int device, bool hang);
  // Returns when aborts of the device do.
  void AwaitAbort(int device);
  void LetLinger(int device, bool linger);
  bool Lingers(int device);
  void Count(uint64_t NcclCounters::*counter, int64_t by = 1);
  NcclCounters counters();

 private:
  Mutex mutex_;
  CondVar abort_may_go_on_;
  std::array<bool, kMaxDevices> held_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<bool, kMaxDevices> broken_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<bool, kMaxDevices> hung_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<bool, kMaxDevices> lingers_ ABSL_GUARDED_BY(mutex_) = {};
  int version_ ABSL_GUARDED_BY(mutex_) = NCCL_VERSION_CODE;
  bool separate_ ABSL_GUARDED_BY(mutex_) = false;
  NcclCounters counters_ ABSL_GUARDED_BY(mutex_);
};

// Says what a caller did wrong, and counts it. REQUIRES: the runtime's lock is not held.
void ReportMisuse(const std::string& what);

}  // namespace ringfill::cuda_emulation
