// The 64-byte headers of ring buffers (stream/round_header.h), written and checked where they lie.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// A RoundHeader's bytes as the device sees them.
struct HeaderWords {
  static constexpr int kWords = 8;
  static constexpr int kStopMask = 6;  // the word that is stop_mask
  static constexpr int kChecksum = 7;
  unsigned long long word[kWords];
};

// What a check tells the host.
struct HeaderReport {
  unsigned mismatches;           // headers refused since the host last set this to 0
  HeaderWords expected;          // of the first refused one
  HeaderWords got;               // likewise; valid when mismatches > 0
  unsigned long long stop_mask;  // OR of the headers that were accepted
};

// to, at: aligned to 8 bytes.
[[nodiscard]] int WriteHeader(const HeaderWords& header, std::byte* to, KernelStream stream);
// The same, but the stop_mask that lies there stays.
[[nodiscard]] int ForwardHeader(const HeaderWords& header, std::byte* at, KernelStream stream);
// Compares all words but stop_mask and checksum.
[[nodiscard]] int CheckHeader(const HeaderWords& expected, const std::byte* at,
                              HeaderReport* report, KernelStream stream);

}  // namespace ringfill::gpu
