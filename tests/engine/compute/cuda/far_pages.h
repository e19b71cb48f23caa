// KV pages so far apart that offsets into them need 64 bits; the memory between is never touched.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace ringfill::gpu {

class FarPages {
 public:
  // Four of them lie beyond 2^31 elements of two bytes, and 4 GiB, from the first.
  static constexpr int64_t kStride = int64_t{3} << 29;
  static constexpr int64_t kPages = 4;

  FarPages() { EXPECT_EQ(cudaMalloc(&base_, static_cast<size_t>(kPages * kStride)), cudaSuccess); }
  ~FarPages() { EXPECT_EQ(cudaFree(base_), cudaSuccess); }
  FarPages(const FarPages&) = delete;
  FarPages& operator=(const FarPages&) = delete;

  std::byte* base() const { return base_; }

  void Write(int64_t page, std::span<const std::byte> bytes, cudaMemcpyKind kind) {
    ASSERT_EQ(cudaMemcpy(base_ + page * kStride, bytes.data(), bytes.size(), kind), cudaSuccess);
  }
  std::vector<std::byte> Read(int64_t page, int64_t offset, size_t bytes) const {
    std::vector<std::byte> out(bytes);
    EXPECT_EQ(
        cudaMemcpy(out.data(), base_ + page * kStride + offset, bytes, cudaMemcpyDeviceToHost),
        cudaSuccess);
    return out;
  }

 private:
  std::byte* base_ = nullptr;
};

}  // namespace ringfill::gpu
