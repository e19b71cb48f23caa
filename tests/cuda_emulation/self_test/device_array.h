// Device memory for the self tests.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "base/check.h"

namespace ringfill::emulation_test {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    RF_CHECK(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    RF_CHECK(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) ==
             cudaSuccess);
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    RF_CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
             cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace ringfill::emulation_test
