#include "engine/prefill/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ringfill {
namespace {

constexpr int64_t kVocabBlock = 2048;

struct ScoreRow {
  int64_t row;
  int chunk;
  int64_t position;
  TokenId target;
};

std::vector<ScoreRow> CollectRows(const StepPlan& plan, const RowLayout& layout, uint64_t stopped) {
  std::vector<ScoreRow> out;
  for (int64_t r = 0; r < layout.rows(); ++r) {
    const int c = layout.chunk[static_cast<size_t>(r)];
    const PrefillChunk& chunk = plan.chunks[static_cast<size_t>(c)];
    if (!chunk.score || ((stopped >> c) & 1)) continue;
    const int64_t position = layout.position[static_cast<size_t>(r)];
    const auto i = static_cast<size_t>(position - chunk.begin);
    if (i < chunk.targets.size()) out.push_back({r, c, position, chunk.targets[i]});
  }
  return out;
}

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

}  // namespace

void ScoreChunks(Rank& rank, const StepPlan& plan, const RowLayout& layout, uint64_t stopped,
                 RankStepResult& result) {
  const std::vector<ScoreRow> rows = CollectRows(plan, layout, stopped);
  if (rows.empty()) return;
  const ModelConfig& c = rank.context.config();
  const DType dtype = rank.context.forward->dtype();
  const WeightMatrix& head = rank.context.model->output();
  const auto count = static_cast<int64_t>(rows.size());

  // Normalised rows, padded to whole tiles. [count, width] in the compute type
  const size_t row_bytes = static_cast<size_t>(c.width) * DTypeBytes(dtype);
  AlignedBuffer normed(static_cast<size_t>(count + kMaxProductRows) * row_bytes);
  rank.team.ParallelFor(count, [&](int, int64_t i) {
    RmsNorm(rank.x.as<float>() + rows[static_cast<size_t>(i)].row * c.width,
            rank.context.model->output_norm().data(), c.norm_epsilon, 1, c.width, dtype,
            normed.data() + static_cast<size_t>(i) * row_bytes);
  });

  const int64_t blocks = (c.vocab + kVocabBlock - 1) / kVocabBlock;
  std::vector<BlockScores> scores(static_cast<size_t>(blocks));
  std::vector<AlignedBuffer> packed(static_cast<size_t>(rank.team.size()));
  std::vector<AlignedBuffer> logits(static_cast<size_t>(rank.team.size()));
  rank.team.ParallelFor(blocks, [&](int thread, int64_t b) {
    const int64_t begin = b * kVocabBlock;
    const int64_t n = std::min(kVocabBlock, c.vocab - begin);
    const PackedFormat format(dtype, n, c.width);
    MatrixProducts& products = rank.scratch[static_cast<size_t>(thread)]->products;
    AlignedBuffer& weights = packed[static_cast<size_t>(thread)];
    AlignedBuffer& y = logits[static_cast<size_t>(thread)];
    Rank::Reserve(weights, format.bytes());
    Rank::Reserve(y, static_cast<size_t>(kMaxProductRows * n) * sizeof(float));
    products.Pack(head, begin, format, weights.data());
    BlockScores& out = scores[static_cast<size_t>(b)];
    out.log_sum_exp.resize(rows.size());
    out.target_logit.assign(rows.size(), std::numeric_limits<float>::quiet_NaN());
    for (int64_t first = 0; first < count; first += kMaxProductRows) {
      const int64_t m = std::min(kMaxProductRows, count - first);
      products.Run(format, weights.data(), normed.data() + static_cast<size_t>(first) * row_bytes,
                   m, DType::kF32, y.data());
      for (int64_t i = 0; i < m; ++i) {
        const auto r = static_cast<size_t>(first + i);
        const float* row_logits = y.as<float>() + i * n;
        out.log_sum_exp[r] = LogSumExpOf(row_logits, n).log_sum_exp;
        const int64_t target = rows[r].target - begin;
        if (target >= 0 && target < n) out.target_logit[r] = row_logits[target];
      }
    }
  });
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto block = static_cast<size_t>(rows[r].target / kVocabBlock);
    result.scores.push_back({rows[r].chunk, rows[r].position,
                             scores[block].target_logit[r] - MergeLogSumExp(scores, r)});
  }
}

}  // namespace ringfill
