// What cuBLASLt's opaque objects hold in the emulation, and what may be multiplied.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ringfill::cuda_emulation {

struct MatrixLayout {
  cudaDataType_t type = CUDA_R_32F;
  int32_t batches = 1;
  uint64_t rows = 0;
  uint64_t columns = 0;
  int64_t stride = 0;  // elements from one column to the next
  int64_t batch_stride = 0;

  size_t ElementBytes() const { return type == CUDA_R_32F ? 4 : 2; }
  // Of one matrix, from its first element to the end of its last.
  size_t Bytes() const {
    return ((columns - 1) * static_cast<uint64_t>(stride) + rows) * ElementBytes();
  }
};

struct MatmulOperation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t a = CUBLAS_OP_N;
  cublasOperation_t b = CUBLAS_OP_N;
};

enum MatrixRole { kA, kB, kC, kD, kMatrices };

// The real library takes pointers for aligned to 256 bytes unless it is told otherwise.
inline constexpr uint32_t kDefaultAlignment = 256;

struct MatmulPreference {
  uint64_t workspace_bytes = 0;
  std::array<uint32_t, kMatrices> alignment = {kDefaultAlignment, kDefaultAlignment,
                                               kDefaultAlignment, kDefaultAlignment};
};

// An algorithm is good for the problem and the alignments that it was offered for.
struct MatmulAlgorithm {
  uint64_t mark = 0;  // tells one that the heuristics made from garbage
  uint64_t problem = 0;
  uint64_t workspace_bytes = 0;
  std::array<uint32_t, kMatrices> alignment{};
};
inline constexpr uint64_t kAlgorithmMark = 0x6d61746d756c2101;

struct MatmulProblem {
  MatmulOperation operation;
  std::array<MatrixLayout, kMatrices> layout;

  uint64_t m() const { return layout[kD].rows; }
  uint64_t n() const { return layout[kD].columns; }
  uint64_t k() const { return operation.a == CUBLAS_OP_N ? layout[kA].columns : layout[kA].rows; }
  // INVALID_VALUE when extents and strides do not fit each other, NOT_SUPPORTED when no algorithm
  // takes the types.
  cublasStatus_t Check() const;
  // Of all that an algorithm depends on.
  uint64_t Digest() const;
};

// d = alpha op(a) op(b) + beta c, all matrices in memory that can be read. Float32 accumulation.
void Multiply(const MatmulProblem& problem, float alpha, const void* a, const void* b, float beta,
              const void* c, void* d);

// The opaque objects are plain words, so values are copied in and out.
template <typename T, typename Opaque>
T Unwrap(const Opaque& opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(static_cast<void*>(&value), &opaque, sizeof(T));
  return value;
}
template <typename T, typename Opaque>
void Wrap(const T& value, Opaque& opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  std::memcpy(&opaque, &value, sizeof(T));
}

}  // namespace ringfill::cuda_emulation
