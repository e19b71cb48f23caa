// The shared memory of the block that runs on this OS thread: static arrays and the dynamic part,
// each with a red zone behind it, all bytes 0xff (NaN in every floating-point type) when a block
// starts. Used by one BlockExecutor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_emulation/include/emulated_device_calls.h"

namespace ringfill::cuda_emulation {

inline constexpr size_t kStaticSharedLimit = 48 * 1024;
inline constexpr size_t kOptInSharedLimit = 227 * 1024;

class SharedMemory {
 public:
  // Offsets below are into [data(), data() + kSpan).
  static constexpr size_t kSpan = 640 * 1024;

  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A launch with so much dynamic memory; static arrays of the last one are forgotten.
  void StartLaunch(size_t dynamic_bytes);
  // Fills what has been declared so far.
  void StartBlock();
  // The array of this declaration, the same for all threads of a launch. Null when static or all
  // memory together exceed their limits.
  void* Static(const SharedSite& site, size_t bytes);
  unsigned char* dynamic() { return memory_ + kDynamicOffset; }

  size_t static_bytes() const { return static_bytes_; }
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  const unsigned char* data() const { return memory_; }
  // Where a byte lies, for messages.
  std::string Name(size_t offset) const;
  // True when all of these bytes are inside one array.
  bool Inside(size_t offset, size_t bytes) const {
    if (offset + bytes > kSpan || bytes == 0) return bytes == 0;
    for (size_t chunk = offset / kChunk; chunk <= (offset + bytes - 1) / kChunk; ++chunk) {
      const size_t end = offset + bytes - chunk * kChunk;
      if (valid_[chunk] < (end < kChunk ? end : kChunk)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kChunk = 16;
  static constexpr size_t kStaticOffset = 1024;
  static constexpr size_t kDynamicOffset = 256 * 1024;
  static constexpr size_t kRedZone = 64;

  struct Array {
    const SharedSite* site;
    size_t offset;
    size_t bytes;
  };
  void Declare(size_t offset, size_t bytes);

  unsigned char* memory_;
  std::vector<uint8_t> valid_;  // of each chunk, how many of its first bytes are in an array
  std::vector<Array> arrays_;
  size_t next_ = kStaticOffset;
  size_t static_bytes_ = 0;
  size_t dynamic_bytes_ = 0;
};

}  // namespace ringfill::cuda_emulation
