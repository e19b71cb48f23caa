#include "engine/compute/cpu/output_head.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/compute/products/vector_product.h"

namespace ringfill {
namespace {

constexpr int64_t kVocabBlock = 2048;
// Rows of the output head that one task multiplies.
constexpr int64_t kTaskRows = 512;

// The log-sum-exp over one block of the vocabulary for every row, and the targets found in it.
struct BlockScores {
  std::vector<float> log_sum_exp;   // [rows]
  std::vector<float> target_logit;  // [rows], NaN where the target lies elsewhere
};

// log(sum of e^lse_b) over blocks, natural.
float MergeLogSumExp(const std::vector<BlockScores>& blocks, size_t row) {
  float max = -std::numeric_limits<float>::infinity();
  for (const BlockScores& block : blocks) max = std::max(max, block.log_sum_exp[row]);
  double sum = 0;
  for (const BlockScores& block : blocks) sum += std::exp(double{block.log_sum_exp[row]} - max);
  return max + static_cast<float>(std::log(sum));
}

// Scores of one block of the vocabulary; `normed` is padded to whole tiles.
BlockScores ScoreBlock(CpuRank& rank, int thread, int64_t begin, const std::byte* normed,
                       const std::vector<Device::ScoreRow>& rows) {
  const CpuModel& model = rank.model;
  const ModelConfig& config = model.config();
  CpuThread& scratch = rank.thread(thread);
  const int64_t n = std::min(kVocabBlock, config.vocab - begin);
  const PackedFormat format(model.dtype(), n, config.width);
  scratch.head_weights.Reserve(format.bytes());
  scratch.head_logits.Reserve(static_cast<size_t>(kMaxProductRows * n) * sizeof(float));
  scratch.products.Pack(model.model().output(), begin, format, scratch.head_weights.data());
  BlockScores out;
  out.log_sum_exp.resize(rows.size());
  out.target_logit.assign(rows.size(), std::numeric_limits<float>::quiet_NaN());
  const auto count = static_cast<int64_t>(rows.size());
  const size_t row_bytes = static_cast<size_t>(config.width) * DTypeBytes(model.dtype());
  for (int64_t first = 0; first < count; first += kMaxProductRows) {
    const int64_t m = std::min(kMaxProductRows, count - first);
    scratch.products.Run(format, scratch.head_weights.data(),
                         normed + static_cast<size_t>(first) * row_bytes, m, DType::kF32,
                         scratch.head_logits.data());
    for (int64_t i = 0; i < m; ++i) {
      const auto r = static_cast<size_t>(first + i);
      const float* logits = scratch.head_logits.as<float>() + i * n;
      out.log_sum_exp[r] = LogSumExpOf(logits, n).log_sum_exp;
      const int64_t target = rows[r].target - begin;
      if (target >= 0 && target < n) out.target_logit[r] = logits[target];
    }
  }
  return out;
}

}  // namespace

void HiddenRows(CpuRank& rank, const float* x, const std::vector<int64_t>& rows, float* out) {
  const ModelConfig& config = rank.model.config();
  const float* norm = rank.model.model().output_norm().data();
  rank.team.ParallelFor(static_cast<int64_t>(rows.size()), [&](int, int64_t i) {
    RmsNorm(x + rows[static_cast<size_t>(i)] * config.width, norm, config.norm_epsilon, 1,
            config.width, DType::kF32, out + i * config.width);
  });
}

void ScoreRows(CpuRank& rank, const float* x, const std::vector<Device::ScoreRow>& rows,
               float* out) {
  if (rows.empty()) return;
  const CpuModel& model = rank.model;
  const ModelConfig& config = model.config();
  const auto count = static_cast<int64_t>(rows.size());
  const size_t row_bytes = static_cast<size_t>(config.width) * DTypeBytes(model.dtype());
  LedgerBuffer normed(rank.ledger, "score rows");
  normed.Reserve(static_cast<size_t>(count + kMaxProductRows) * row_bytes);
  rank.team.ParallelFor(count, [&](int, int64_t i) {
    RmsNorm(x + rows[static_cast<size_t>(i)].row * config.width, model.model().output_norm().data(),
            config.norm_epsilon, 1, config.width, model.dtype(),
            normed.data() + static_cast<size_t>(i) * row_bytes);
  });
  std::vector<BlockScores> scores(
      static_cast<size_t>((config.vocab + kVocabBlock - 1) / kVocabBlock));
  rank.team.ParallelFor(static_cast<int64_t>(scores.size()), [&](int thread, int64_t b) {
    scores[static_cast<size_t>(b)] = ScoreBlock(rank, thread, b * kVocabBlock, normed.data(), rows);
  });
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto block = static_cast<size_t>(rows[r].target / kVocabBlock);
    out[r] = scores[block].target_logit[r] - MergeLogSumExp(scores, r);
  }
}

void Logits(CpuRank& rank, const float* hidden, int64_t rows, int64_t vocab_begin,
            int64_t vocab_end, float* out) {
  const int64_t width = rank.model.config().width;
  const int64_t slice = vocab_end - vocab_begin;
  const int64_t tasks = (slice + kTaskRows - 1) / kTaskRows;
  for (int64_t first = 0; first < rows; first += kMaxVectorBatch) {
    const auto batch = static_cast<int>(std::min<int64_t>(kMaxVectorBatch, rows - first));
    rank.team.ParallelFor(tasks, [&](int, int64_t i) {
      const int64_t begin = vocab_begin + i * kTaskRows;
      VectorProduct({.w = &rank.model.model().output(),
                     .row_begin = begin,
                     .row_end = std::min(begin + kTaskRows, vocab_end),
                     .col_begin = 0,
                     .col_end = width,
                     .x = hidden + first * width,
                     .x_stride = width,
                     .y = out + first * slice - vocab_begin,
                     .y_stride = static_cast<ptrdiff_t>(slice),
                     .batch = batch},
                    rank.model.isa());
    });
  }
}

}  // namespace ringfill
