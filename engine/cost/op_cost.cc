#include "engine/cost/op_cost.h"

#include <algorithm>

namespace ringfill {
namespace {

constexpr int64_t kFloatBytes = 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

OpCost::OpCost(const ModelShape& shape, const DeviceFigures& figures) : shape_(shape), f_(figures) {
  // Both measured tiles take per_key + rows * per_row_key seconds a key.
  const double flops = 4.0 * static_cast<double>(shape.head_dim);
  const auto large_rows = static_cast<double>(f_.large_tile.rows);
  const auto small_rows = static_cast<double>(f_.small_tile.rows);
  const double large = large_rows * flops / f_.large_tile.flops_per_s;
  const double small = small_rows * flops / f_.small_tile.flops_per_s;
  if (large_rows > small_rows) {
    per_row_key_ = std::max(0.0, large - small) / (large_rows - small_rows);
  }
  // Noise must not make a slope or an intercept negative.
  per_row_key_ = std::min(per_row_key_, small / small_rows);
  per_key_ = std::max(0.0, large - large_rows * per_row_key_);
}

double OpCost::Embed(int64_t rows) const {
  return Copy(static_cast<double>(rows * shape_.width * kFloatBytes));
}

double OpCost::Layers(int64_t finish_rows, int64_t project_rows) const {
  double seconds = f_.op_overhead_s;
  auto half = [&](int64_t rows, int64_t weights) {
    if (rows < 0) return;
    seconds +=
        static_cast<double>(weights) *
        (1.0 / f_.expand_weights_per_s + 2.0 * static_cast<double>(rows) / f_.product_flops_per_s);
  };
  half(finish_rows, shape_.finish_weights());
  half(project_rows, shape_.project_weights());
  return seconds;
}

double OpCost::Score(int64_t rows) const {
  const auto weights = static_cast<double>(shape_.vocab * shape_.width);
  return f_.op_overhead_s + weights * (1.0 / f_.expand_weights_per_s +
                                       2.0 * static_cast<double>(rows) / f_.product_flops_per_s);
}

double OpCost::TokenProduct(double weights, int64_t tokens) const {
  return weights * (shape_.stored_weight_bytes / f_.token_bytes_per_s +
                    2.0 * static_cast<double>(tokens) / f_.token_flops_per_s);
}

double OpCost::TokenQkv(int64_t tokens, int ranks) const {
  return f_.op_overhead_s +
         TokenProduct(static_cast<double>(shape_.project_weights()) / ranks, tokens);
}

double OpCost::TokenAttend(int64_t tokens, double token_keys, double tile_keys) const {
  return f_.op_overhead_s + AttendTile(token_keys, tile_keys) +
         static_cast<double>(StateBytes(shape_, tokens)) / f_.copy_bytes_per_s;
}

double OpCost::TokenOutput(int64_t tokens, int ranks) const {
  return f_.op_overhead_s +
         static_cast<double>(StateBytes(shape_, tokens) * ranks) / f_.copy_bytes_per_s +
         TokenProduct(static_cast<double>(shape_.q_width() * shape_.width) / ranks, tokens);
}

double OpCost::TokenFfn(int64_t tokens, int ranks) const {
  return f_.op_overhead_s +
         TokenProduct(static_cast<double>(3 * shape_.ffn_width * shape_.width) / ranks, tokens);
}

double OpCost::TokenEnd(int64_t tokens, int ranks) const {
  return Copy(static_cast<double>(TokenFfnBytes(shape_, tokens) * ranks));
}

double OpCost::Logits(int64_t rows, int64_t vocab_rows) const {
  return f_.op_overhead_s + TokenProduct(static_cast<double>(vocab_rows * shape_.width), rows);
}

int64_t QueryBytes(const ModelShape& shape, int64_t rows) {
  return rows * shape.q_width() * shape.kv_element_bytes;
}

int64_t StateBytes(const ModelShape& shape, int64_t rows) {
  return rows * shape.heads * (2 + shape.head_dim) * kFloatBytes;
}

int64_t KvRowBytes(const ModelShape& shape) {
  return 2 * shape.kv_width() * shape.kv_element_bytes;
}

int64_t PageLayerBytes(const ModelShape& shape) { return shape.page_tokens * KvRowBytes(shape); }

int64_t TokenQkvBytes(const ModelShape& shape, int64_t tokens, int ranks) {
  return kRoundHeaderBytes +
         tokens * CeilDiv(shape.q_width() + 2 * shape.kv_width(), ranks) * kFloatBytes;
}

int64_t TokenStatesBytes(const ModelShape& shape, int64_t tokens) {
  return StateBytes(shape, tokens);
}

int64_t TokenOutputBytes(const ModelShape& shape, int64_t tokens, int ranks) {
  return tokens * CeilDiv(shape.width, ranks) * kFloatBytes;
}

int64_t TokenFfnBytes(const ModelShape& shape, int64_t tokens) {
  return tokens * shape.width * kFloatBytes;
}

}  // namespace ringfill
