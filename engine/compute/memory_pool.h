// What the memory of a rank's device is taken for.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ringfill {

enum class MemoryPool {
  kKvPages,
  kWeights,
  kBuffers,  // of the passes: ring and activations (Device::Allocate)
  kScratch,  // of the device's own operations
};
inline constexpr int kMemoryPools = 4;

constexpr std::string_view MemoryPoolName(MemoryPool pool) {
  constexpr std::string_view kNames[kMemoryPools] = {"kv_pages", "weights", "buffers", "scratch"};
  return kNames[static_cast<int>(pool)];
}

using MemoryBytes = std::array<int64_t, kMemoryPools>;  // by pool

}  // namespace ringfill
