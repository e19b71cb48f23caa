// Limits of the emulated devices, which are those of sm_90 ("Technical Specifications per Compute
// Capability" of the programming guide).
#pragma once

#include <cstddef>

namespace ringfill::cuda_emulation {

inline constexpr int kMaxThreads = 1024;
inline constexpr unsigned kMaxBlockDim[3] = {1024, 1024, 64};
inline constexpr unsigned kMaxGridDim[3] = {0x7fffffff, 65535, 65535};
inline constexpr int kMultiprocessors = 132;
inline constexpr int kMultiprocessorThreads = 2048;
inline constexpr int kMultiprocessorBlocks = 32;
inline constexpr size_t kMultiprocessorSharedBytes = 228 * 1024;
inline constexpr size_t kReservedSharedBytes = 1024;  // of each block, by the system
inline constexpr int kGreatestPriority = -5;

}  // namespace ringfill::cuda_emulation
