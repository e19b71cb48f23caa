// Device code: telling the host which chunk shows a value that is not finite.
#pragma once

#include "engine/compute/cuda/device_code.h"

namespace ringfill::gpu {

// Sets bit `bit` (0 to 63) of a mask in device memory.
RF_DEVICE void SetBit(unsigned long long* mask, int bit) {
  // Little-endian halves.
  AtomicOr(reinterpret_cast<unsigned*>(mask) + bit / 32, 1u << (bit % 32));
}

}  // namespace ringfill::gpu
