#include "engine/compute/attention/attention.h"

#include <cmath>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/attention/baseline_attention.h"
#include "engine/compute/attention/group_pass.h"
#include "engine/compute/attention/tiled_attention.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

int64_t AttentionWork(const AttentionTile& tile, int page_tokens) {
  int64_t keys = 0;
  for (int t = 0; t < tile.tokens; ++t) {
    keys += KeysInPages(tile.begin, tile.visible[t], page_tokens);
  }
  return keys * tile.group;
}

std::unique_ptr<AttentionKernel> MakeAttentionKernel(const KvBlockShape& shape, CpuIsa isa) {
  RF_CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0);
  RF_CHECK(shape.page_tokens > 0 && shape.page_tokens % kSliceTokens == 0);
  const bool is_f32 = shape.type == DType::kF32;
  if (shape.head_dim % kSliceTokens != 0) return MakeBaselineAttention(shape);
  if (isa >= CpuIsa::kAvx512Bf16 && !is_f32) {
    if (const GroupKernel kernel = Avx512Bf16GroupKernel()) {
      return MakeTiledAttention({shape, kernel, QueryPacking::kBf16InPairs, "avx512 bf16"});
    }
  }
  if (isa >= CpuIsa::kAvx512) {
    const GroupKernels kernels = Avx512GroupKernels();
    if (const GroupKernel kernel = is_f32 ? kernels.f32 : kernels.bf16) {
      return MakeTiledAttention(
          {shape, kernel, QueryPacking::kFloat, is_f32 ? "avx512 f32" : "avx512 f32 on bf16 kv"});
    }
  }
  if (isa >= CpuIsa::kAvx2) {
    const GroupKernels kernels = Avx2GroupKernels();
    if (const GroupKernel kernel = is_f32 ? kernels.f32 : kernels.bf16) {
      return MakeTiledAttention({shape, kernel, QueryPacking::kFloat,
                                 is_f32 ? "avx2 f32" : "avx2 f32 on bf16 kv",
                                 is_f32 ? nullptr : kernels.f32});
    }
  }
  return MakeBaselineAttention(shape);
}

void PackQueries(DType type, int head_dim, const float* q, size_t n, void* q_out) {
  const float scale = static_cast<float>(double{kLog2E} / std::sqrt(double(head_dim)));
  if (type == DType::kF32) {
    auto* out = static_cast<float*>(q_out);
    for (size_t i = 0; i < n; ++i) out[i] = q[i] * scale;
  } else {
    auto* out = static_cast<Bf16*>(q_out);
    for (size_t i = 0; i < n; ++i) out[i] = ToBf16(q[i] * scale);
  }
}

}  // namespace ringfill
