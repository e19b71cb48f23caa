#include "engine/compute/attention/attention.h"

#include <cmath>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/attention/baseline_attention.h"

namespace ringfill {

int64_t AttentionWork(const AttentionTile& tile, int page_tokens) {
  int64_t pages = 0;
  for (int t = 0; t < tile.tokens; ++t) pages += (tile.visible[t] + page_tokens - 1) / page_tokens;
  return pages * page_tokens * tile.group;
}

std::unique_ptr<AttentionKernel> MakeAttentionKernel(const KvBlockShape& shape, CpuIsa) {
  RF_CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0);
  RF_CHECK(shape.page_tokens > 0 && shape.page_tokens % 16 == 0);
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
