// Weights in the types in which model files store them (products/weight_type.h describes the
// blocks), uploaded as they are and expanded on the device.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// The same names and order as WeightType.
enum class StoredWeight { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0 };

// out = `n` weights, a multiple of the block (32 of the quantised types, else 1). `stored` is
// aligned to 4 bytes. Bits are those of DequantizeRow.
[[nodiscard]] int ExpandWeights(StoredWeight type, const std::byte* stored, int64_t n,
                                Element out_type, void* out, KernelStream stream);

// out row r = row index[r] of a stored matrix of rows of `cols` weights, r in [0, rows). out:
// [rows][cols]. Also the embedding of tokens. REQUIRES: rows of the matrix are whole blocks, and
// 0 <= index[r].
[[nodiscard]] int ExpandRows(StoredWeight type, const std::byte* stored, int64_t cols,
                             const int32_t* index, int64_t rows, Element out_type, void* out,
                             KernelStream stream);

}  // namespace ringfill::gpu
