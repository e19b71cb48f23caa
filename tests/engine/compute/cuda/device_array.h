// Arrays in device memory for the kernels' tests, and copies to and from them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ringfill::gpu {

// Owns the memory. Copies wait for everything that was queued before.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // Full of NaN where nothing is written.
  explicit DeviceArray(size_t size) : size_(size) {
    if (size == 0) return;
    EXPECT_EQ(cudaMalloc(&data_, size * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, size * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    if (size_ == 0) return;
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    Write(values);
  }
  ~DeviceArray() {
    if (data_ == nullptr) return;
    EXPECT_EQ(cudaFree(data_), cudaSuccess);
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  void Write(const std::vector<T>& values) { Write(0, values); }
  void Write(size_t at, const std::vector<T>& values) {
    ASSERT_LE(at + values.size(), size_);
    ASSERT_EQ(
        cudaMemcpy(data_ + at, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        cudaSuccess);
  }
  std::vector<T> Read() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (size_ == 0) return out;
    EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfill::gpu
