// Kernels that put fragments and matrices of matrix_test.cc through ldmatrix and mma. One warp
// each; device memory throughout.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ringfill::emulation_test {

// Four 8x8 matrices of 16-bit elements, row after row, the rows of each 16 bytes and `stride` bytes
// apart. registers: [32 lanes][4].
cudaError_t RunLdMatrix(bool transposed, const uint16_t* matrices, int stride, unsigned* registers);

// Shapes of a call: m products down, n across.
inline constexpr int kMmaDown = 2;
inline constexpr int kMmaAcross = 3;
enum class MmaForm { kOne, kRow, kGrid };
// a: [m][32 lanes][4], b: [n][32][2], d: [m][n][32][4] in and out; the forms compute the same.
cudaError_t RunMma(bool is_bf16, MmaForm form, const unsigned* a, const unsigned* b, float* d);

// What the conversions make of `values`: [n][4] 16-bit patterns (Narrow bf16, Narrow f16, low half
// of a Pack of bf16, of f16), and back: [n][4] floats.
cudaError_t RunConversions(const float* values, int n, uint16_t* narrow, float* wide);
// Exp2, IsFinite: [n][2].
cudaError_t RunFunctions(const float* values, int n, float* results);

}  // namespace ringfill::emulation_test
