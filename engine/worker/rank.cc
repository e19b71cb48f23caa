#include "engine/worker/rank.h"

#include <algorithm>

namespace ringfill {
namespace {

// Operations per second. The slowest core seen does thirty times as much in float32.
constexpr double kFloorOperationsPerS = 0.5e9;

}  // namespace

Duration PeerTimeout(const ForwardContext& context, const StepPlan& plan) {
  const ModelConfig& c = context.config();
  double rows = static_cast<double>(plan.decodes.size());
  double head_rows = rows;
  double attention = 0;  // (query, key) pairs
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto tokens = static_cast<double>(chunk.end - chunk.begin);
    rows += tokens;
    head_rows += chunk.score ? tokens : 1;
    attention += tokens * static_cast<double>(chunk.end);
  }
  for (const DecodeToken& decode : plan.decodes) {
    attention += static_cast<double>(decode.position);
  }
  const double layer =
      4.0 * c.heads * c.head_dim * attention +
      2.0 * rows * c.width * (2.0 * c.q_width() + 2.0 * c.kv_width() + 3.0 * c.ffn_width);
  const double head = 2.0 * head_rows * c.width * static_cast<double>(c.vocab);
  const auto predicted = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>((layer + head) / kFloorOperationsPerS));
  return std::max(context.min_round_timeout, predicted);
}

Rank::Rank(const ForwardContext& context, const Placement& placement, int64_t pages, int threads,
           int spin_rounds)
    : context(context),
      placement(placement),
      pool(context.geometry, pages),
      team(threads, spin_rounds) {
  for (int t = 0; t < threads; ++t) {
    scratch.push_back(std::make_unique<ThreadScratch>(context.config(), context.forward->dtype()));
  }
}

void Rank::Reserve(AlignedBuffer& buffer, size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = AlignedBuffer();
  buffer = AlignedBuffer(std::max(bytes, size_t{4096}));
}

}  // namespace ringfill
