#include "tests/cuda_emulation/memory/protection_keys.h"

#include <sys/mman.h>

#include "base/check.h"
#include "tests/cuda_emulation/memory/device_memory.h"

namespace ringfill::cuda_emulation {
namespace {

// How often this thread has opened each device.
thread_local int opened[kMaxDevices] = {};

}  // namespace

ProtectionKeys::ProtectionKeys(int count) {
  for (int i = 0; i < count; ++i) {
    const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    // Linux gives them out in ascending order; somebody else's in between would be odd.
    if (key < 0 || (i > 0 && key != first_ + i)) return;
    if (i == 0) first_ = key;
  }
  available_ = true;
}

void ProtectionKeys::Open(int device) const {
  if (opened[device]++ == 0) RF_CHECK(pkey_set(key(device), 0) == 0);
}

void ProtectionKeys::Close(int device) const {
  if (--opened[device] == 0) RF_CHECK(pkey_set(key(device), PKEY_DISABLE_ACCESS) == 0);
}

}  // namespace ringfill::cuda_emulation
