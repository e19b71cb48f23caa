#include "engine/compute/attention/kv_layout.h"

#include <cstdint>

#include "base/check.h"
#include "base/float_types.h"

namespace ringfill {
namespace {

void StoreF32(const KvBlockShape& shape, int token, int rows, const float* k, const float* v,
              ptrdiff_t stride, float* k_out, float* v_out) {
  const ptrdiff_t dim = shape.head_dim;
  const ptrdiff_t page = shape.page_tokens;
  // Rows in the inner loop: the stores into the transposed K run along a cache line.
  for (ptrdiff_t d = 0; d < dim; ++d) {
    for (ptrdiff_t i = 0; i < rows; ++i) k_out[d * page + token + i] = k[i * stride + d];
  }
  for (ptrdiff_t i = 0; i < rows; ++i) {
    for (ptrdiff_t d = 0; d < dim; ++d) v_out[(token + i) * dim + d] = v[i * stride + d];
  }
}

void StoreBf16(const KvBlockShape& shape, int token, int rows, const float* k, const float* v,
               ptrdiff_t stride, Bf16* k_out, Bf16* v_out) {
  const ptrdiff_t dim = shape.head_dim;
  const ptrdiff_t page = shape.page_tokens;
  for (ptrdiff_t d = 0; d < dim; d += 2) {
    Bf16* out = k_out + d * page + 2 * token;
    for (ptrdiff_t i = 0; i < rows; ++i) {
      out[2 * i] = ToBf16(k[i * stride + d]);
      out[2 * i + 1] = ToBf16(k[i * stride + d + 1]);
    }
  }
  for (ptrdiff_t i = 0; i < rows; ++i) {
    const ptrdiff_t t = token + i;
    Bf16* out = v_out + (t & ~ptrdiff_t{1}) * dim + (t & 1);
    for (ptrdiff_t d = 0; d < dim; ++d) out[2 * d] = ToBf16(v[i * stride + d]);
  }
}

}  // namespace

void StoreKv(const KvBlockShape& shape, int token_in_page, int rows, const float* k, const float* v,
             ptrdiff_t stride, std::byte* k_block, std::byte* v_block) {
  RF_CHECK(token_in_page >= 0 && rows >= 0 && token_in_page + rows <= shape.page_tokens);
  if (shape.type == DType::kF32) {
    StoreF32(shape, token_in_page, rows, k, v, stride, reinterpret_cast<float*>(k_block),
             reinterpret_cast<float*>(v_block));
  } else {
    StoreBf16(shape, token_in_page, rows, k, v, stride, reinterpret_cast<Bf16*>(k_block),
              reinterpret_cast<Bf16*>(v_block));
  }
}

void LoadKv(const KvBlockShape& shape, int token_in_page, const std::byte* k_block,
            const std::byte* v_block, float* k, float* v) {
  RF_CHECK(token_in_page >= 0 && token_in_page < shape.page_tokens);
  const ptrdiff_t dim = shape.head_dim;
  const ptrdiff_t page = shape.page_tokens;
  const ptrdiff_t t = token_in_page;
  for (ptrdiff_t d = 0; d < dim; ++d) {
    if (shape.type == DType::kF32) {
      if (k != nullptr) k[d] = reinterpret_cast<const float*>(k_block)[d * page + t];
      if (v != nullptr) v[d] = reinterpret_cast<const float*>(v_block)[t * dim + d];
      continue;
    }
    const auto* k_in = reinterpret_cast<const Bf16*>(k_block);
    const auto* v_in = reinterpret_cast<const Bf16*>(v_block);
    if (k != nullptr) k[d] = ToFloat(k_in[(d / 2) * page * 2 + 2 * t + (d & 1)]);
    if (v != nullptr) v[d] = ToFloat(v_in[(t / 2) * dim * 2 + 2 * d + (t & 1)]);
  }
}

}  // namespace ringfill
