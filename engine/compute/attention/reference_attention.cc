#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float_types.h"
#include "engine/compute/attention/attention.h"
#include "engine/compute/attention/kv_pages.h"

namespace ringfill {
namespace {

class ReferenceAttention : public AttentionKernel {
 public:
  explicit ReferenceAttention(const KvBlockShape& shape) : shape_(shape) {}

  size_t ScratchBytes(int) const override { return 0; }
  std::string_view name() const override { return "reference"; }

  void Run(const AttentionTile& tile, std::byte*) const override {
    for (int row = 0; row < tile.tokens * tile.group; ++row) {
      RunRow(tile, row, tile.visible[row / tile.group]);
    }
  }

 private:
  float Query(const AttentionTile& tile, int row, int d) const {
    const ptrdiff_t i = static_cast<ptrdiff_t>(row) * shape_.head_dim + d;
    if (shape_.type == DType::kF32) return static_cast<const float*>(tile.q)[i];
    return ToFloat(static_cast<const Bf16*>(tile.q)[i]);
  }

  void RunRow(const AttentionTile& tile, int row, int64_t visible) const {
    if (visible <= tile.begin) return;
    const int dim = shape_.head_dim;
    std::vector<double> scores(visible);
    std::vector<float> kv(dim);
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t t = tile.begin; t < visible; ++t) {
      const std::byte* page = KvPage(tile.kv, t / shape_.page_tokens);
      LoadKv(shape_, static_cast<int>(t % shape_.page_tokens), page + tile.kv.k_offset_bytes,
             page + tile.kv.v_offset_bytes, kv.data(), nullptr);
      for (int d = 0; d < dim; ++d) scores[t] += double{Query(tile, row, d)} * double{kv[d]};
      max = std::max(max, scores[t]);
    }
    double sum = 0.0;
    std::vector<double> acc(dim);
    for (int64_t t = tile.begin; t < visible; ++t) {
      const std::byte* page = KvPage(tile.kv, t / shape_.page_tokens);
      LoadKv(shape_, static_cast<int>(t % shape_.page_tokens), page + tile.kv.k_offset_bytes,
             page + tile.kv.v_offset_bytes, nullptr, kv.data());
      const double p = std::exp2(scores[t] - max);
      sum += p;
      for (int d = 0; d < dim; ++d) acc[d] += p * double{kv[d]};
    }
    float max_f = static_cast<float>(max);
    // The float maximum is a rounded one; the sum and the accumulator must refer to it.
    const double shift = std::exp2(max - double{max_f});
    float sum_f = static_cast<float>(sum * shift);
    std::vector<float> acc_f(dim);
    for (int d = 0; d < dim; ++d) acc_f[d] = static_cast<float>(acc[d] * shift);
    MergeSoftmax({&max_f, &sum_f, acc_f.data()}, tile.state.Row(row, dim), dim);
  }

  const KvBlockShape shape_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeReferenceAttention(const KvBlockShape& shape) {
  return std::make_unique<ReferenceAttention>(shape);
}

}  // namespace ringfill
