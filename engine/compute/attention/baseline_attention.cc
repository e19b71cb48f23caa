#include "engine/compute/attention/baseline_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_types.h"
#include "engine/compute/attention/kv_pages.h"

namespace ringfill {
namespace {

class BaselineAttention : public AttentionKernel {
 public:
  explicit BaselineAttention(const KvBlockShape& shape) : shape_(shape) {}

  size_t ScratchBytes(int) const override {
    const size_t dim = shape_.head_dim;
    const size_t page = shape_.page_tokens;
    return sizeof(float) * (2 * dim * page + page + 2 * dim);
  }

  std::string_view name() const override {
    return shape_.type == DType::kF32 ? "baseline f32" : "baseline bf16";
  }

  void Run(const AttentionTile& tile, std::byte* scratch) const override {
    const int64_t page_tokens = shape_.page_tokens;
    const int64_t end = MaxVisible(tile);
    Scratch s = Carve(scratch);
    for (int64_t first = tile.begin / page_tokens * page_tokens; first < end;
         first += page_tokens) {
      const std::byte* page = KvPage(tile.kv, first / page_tokens);
      const int keys = static_cast<int>(std::min(page_tokens, end - first));
      const int begin = static_cast<int>(std::max<int64_t>(0, tile.begin - first));
      Widen(page + tile.kv.k_offset_bytes, page + tile.kv.v_offset_bytes, keys, s);
      for (int token = 0; token < tile.tokens; ++token) {
        const int seen = static_cast<int>(std::min<int64_t>(keys, tile.visible[token] - first));
        if (seen <= begin) continue;
        for (int row = token * tile.group; row < (token + 1) * tile.group; ++row) {
          LoadQuery(tile.q, row, s.q);
          Attend(s, begin, seen, tile.state.Row(row, shape_.head_dim));
        }
      }
    }
  }

 private:
  struct Scratch {
    float* k;       // [head_dim, page_tokens]
    float* v;       // [page_tokens, head_dim]
    float* scores;  // [page_tokens]
    float* q;       // [head_dim]
    float* acc;     // [head_dim]
  };

  Scratch Carve(std::byte* scratch) const {
    const size_t dim = shape_.head_dim;
    const size_t page = shape_.page_tokens;
    float* p = reinterpret_cast<float*>(scratch);
    return {p, p + dim * page, p + 2 * dim * page, p + 2 * dim * page + page,
            p + 2 * dim * page + page + dim};
  }

  void LoadQuery(const void* q, int row, float* out) const {
    const ptrdiff_t dim = shape_.head_dim;
    for (ptrdiff_t d = 0; d < dim; ++d) {
      out[d] = shape_.type == DType::kF32 ? static_cast<const float*>(q)[row * dim + d]
                                          : ToFloat(static_cast<const Bf16*>(q)[row * dim + d]);
    }
  }

  void Widen(const std::byte* k_block, const std::byte* v_block, int keys, const Scratch& s) const {
    const ptrdiff_t dim = shape_.head_dim;
    const ptrdiff_t page = shape_.page_tokens;
    if (shape_.type == DType::kF32) {
      std::copy_n(reinterpret_cast<const float*>(k_block), dim * page, s.k);
      std::copy_n(reinterpret_cast<const float*>(v_block), dim * keys, s.v);
      return;
    }
    const auto* k = reinterpret_cast<const Bf16*>(k_block);
    const auto* v = reinterpret_cast<const Bf16*>(v_block);
    for (ptrdiff_t d = 0; d < dim; ++d) {
      const Bf16* in = k + (d / 2) * page * 2 + (d & 1);
      for (ptrdiff_t t = 0; t < keys; ++t) s.k[d * page + t] = ToFloat(in[2 * t]);
    }
    for (ptrdiff_t t = 0; t < keys; ++t) {
      const Bf16* in = v + (t / 2) * dim * 2 + (t & 1);
      for (ptrdiff_t d = 0; d < dim; ++d) s.v[t * dim + d] = ToFloat(in[2 * d]);
    }
  }

  // One row against tokens [begin, keys) of the widened page.
  void Attend(const Scratch& s, int begin, int keys, const SoftmaxRow& into) const {
    const ptrdiff_t dim = shape_.head_dim;
    const ptrdiff_t page = shape_.page_tokens;
    std::fill_n(s.scores, keys, 0.0f);
    for (ptrdiff_t d = 0; d < dim; ++d) {
      const float q = s.q[d];
      const float* k = s.k + d * page;
      for (int t = begin; t < keys; ++t) s.scores[t] += q * k[t];
    }
    float max = -std::numeric_limits<float>::infinity();
    for (int t = begin; t < keys; ++t) max = std::max(max, s.scores[t]);
    float sum = 0.0f;
    std::fill_n(s.acc, dim, 0.0f);
    for (int t = begin; t < keys; ++t) {
      const float p = std::exp2(s.scores[t] - max);
      const float* v = s.v + t * dim;
      sum += p;
      for (ptrdiff_t d = 0; d < dim; ++d) s.acc[d] += p * v[d];
    }
    MergeSoftmax({&max, &sum, s.acc}, into, shape_.head_dim);
  }

  const KvBlockShape shape_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeBaselineAttention(const KvBlockShape& shape) {
  return std::make_unique<BaselineAttention>(shape);
}

}  // namespace ringfill
