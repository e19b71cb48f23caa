#include "engine/decode/logits.h"

#include <algorithm>

#include "engine/compute/products/vector_product.h"
#include "engine/decode/slices.h"

namespace ringfill {
namespace {

constexpr int64_t kTaskRows = 512;

}  // namespace

void ComputeLogits(Rank& rank, const std::vector<float>& hidden, RankStepResult& result) {
  const ModelConfig& config = rank.context.config();
  const WeightMatrix& head = rank.context.model->output();
  const Slice mine = SliceOf(config.vocab, 1, rank.index(), rank.ranks());
  const int64_t rows = static_cast<int64_t>(hidden.size()) / config.width;
  result.vocab_begin = mine.begin;
  result.vocab_end = mine.end;
  result.logits.resize(static_cast<size_t>(rows * mine.size()));
  const int64_t tasks = (mine.size() + kTaskRows - 1) / kTaskRows;
  for (int64_t first = 0; first < rows; first += kMaxVectorBatch) {
    const auto batch = static_cast<int>(std::min<int64_t>(kMaxVectorBatch, rows - first));
    rank.team.ParallelFor(tasks, [&](int, int64_t i) {
      const int64_t begin = mine.begin + i * kTaskRows;
      VectorProduct({.w = &head,
                     .row_begin = begin,
                     .row_end = std::min(begin + kTaskRows, mine.end),
                     .col_begin = 0,
                     .col_end = config.width,
                     .x = hidden.data() + first * config.width,
                     .x_stride = config.width,
                     .y = result.logits.data() + first * mine.size() - mine.begin,
                     .y_stride = static_cast<ptrdiff_t>(mine.size()),
                     .batch = batch},
                    rank.context.isa);
    });
  }
}

absl::Status ShareRows(Rank& rank, const std::vector<int>& homes, std::vector<float>& mine) {
  if (rank.ranks() == 1 || homes.empty()) return absl::OkStatus();
  const size_t width = mine.size() / homes.size();
  std::vector<float> all(mine.size() * static_cast<size_t>(rank.ranks()));
  RF_RETURN_IF_ERROR(rank.comm->AllGather(std::as_bytes(std::span(mine)),
                                          std::as_writable_bytes(std::span(all)),
                                          rank.context.clock->Now() + rank.peer_timeout));
  for (size_t i = 0; i < homes.size(); ++i) {
    std::copy_n(all.data() + static_cast<size_t>(homes[i]) * mine.size() + i * width, width,
                mine.data() + i * width);
  }
  return absl::OkStatus();
}

}  // namespace ringfill
