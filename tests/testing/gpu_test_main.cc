// Of tests that run on real GPUs: where there is none they are skipped, not passed.
#include <cuda_runtime.h>

#include <cstdio>

#include "gtest/gtest.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("SKIPPED: there is no GPU");
    return kSkipped;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
