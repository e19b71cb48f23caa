// The weight formats that are read straight from the model file. To add one, add a row to the table
// (weight_type.cc), a decoder in plain C++ (dequantize.cc) and one in vectors (decode-inl.h), which
// packing and vector products share.
//
// Block layouts are GGML's (ggml-org/ggml, docs/gguf.md and ggml-common.h describe them):
//   Q4_0: 32 weights, f16 scale d, 16 bytes of nibbles (low nibbles first 16): w = d * (q - 8)
//   Q4_1: 32 weights, f16 d, f16 m, nibbles as above:                          w = d * q + m
//   Q8_0: 32 weights, f16 d, 32 int8:                                          w = d * q
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/float_types.h"

namespace ringfill {

enum class WeightType { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0 };

struct WeightTypeInfo {
  WeightType type;
  std::string_view name;  // as people write it: "Q4_1"
  uint32_t gguf_id;       // ggml_type number in a GGUF file
  int block_weights;      // weights a block
  size_t block_bytes;
  bool needs_quantized_dot;  // false for plain float types
};

const WeightTypeInfo& GetWeightTypeInfo(WeightType type);
std::optional<WeightType> WeightTypeFromGguf(uint32_t gguf_id);
// The name of any ggml type number, known or not supported ("Q4_K", "type 77"), for messages.
std::string GgufTypeName(uint32_t gguf_id);
// "F32, F16, BF16, Q4_0, Q4_1, Q8_0"
std::string SupportedWeightTypes();

// Bytes of a row of `n` weights. REQUIRES: n is a multiple of the block.
size_t WeightRowBytes(WeightType type, int64_t n);

// Expands `n` weights (a multiple of the block) to float32 or bfloat16. The best instruction set of
// the machine is used; both forms round alike on all of them.
void DequantizeRow(WeightType type, const std::byte* row, int64_t n, float* out);
void DequantizeRow(WeightType type, const std::byte* row, int64_t n, Bf16* out);

// A matrix as stored: [rows][cols], each row contiguous. Points into the mapped model file (no
// alignment is promised).
struct WeightMatrix {
  WeightType type = WeightType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs

  const std::byte* Row(int64_t r) const {
    return data + static_cast<size_t>(r) * WeightRowBytes(type, cols);
  }
};

}  // namespace ringfill
