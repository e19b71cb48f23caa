// The real passes in simulated time, against times worked out by hand.
#include "engine/sim/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/layout/placement.h"

namespace ringfill {
namespace {

constexpr double kFast = 1e30;

// Only attention takes time: a second for each query row and key. One KV head of four, bf16, pages
// of 4 tokens: a page of a layer has 64 bytes.
SimSpec AttentionOnly(int ranks, LinkFigures link) {
  SimSpec spec;
  spec.shape.layers = 2;
  spec.shape.width = 4;
  spec.shape.ffn_width = 4;
  spec.shape.heads = 1;
  spec.shape.kv_heads = 1;
  spec.shape.head_dim = 4;
  spec.shape.vocab = 16;
  spec.shape.page_tokens = 4;
  DeviceFigures f;
  f.product_flops_per_s = f.expand_weights_per_s = f.token_bytes_per_s = f.token_flops_per_s =
      f.copy_bytes_per_s = kFast;
  f.op_overhead_s = 0;
  f.large_tile = {192, 16};
  f.small_tile = {1, 16};
  spec.figures = Figures::Uniform(ranks, f, link);
  spec.placement = {4, Placement(ranks, 4).slot_map()};
  spec.chunk_tokens = {16};
  // Then the last layer stores K/V and does not attend.
  spec.wants_logits = false;
  return spec;
}

SimResult SimulateOrFail(const SimSpec& spec) {
  absl::StatusOr<SimResult> result = Simulate(spec);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SimResult{};
}

// Two ranks, four stripes of 4: rank 0 has the first and the last. In whole pages, its rows see
// 4 * 4 + 4 * 8 keys of its own and 4 * 0 + 4 * 8 of rank 1; rank 1's rows see 4 * 4 + 4 * 8 of
// their own and 4 * 4 + 4 * 4 of rank 0: 48 and 32 seconds on each. A shard has two pages and a
// header: 192 bytes.
TEST(Simulate, PassKvHidesTheExchangeBehindItsOwnShard) {
  SimSpec spec = AttentionOnly(2, {.latency_s = 0.5, .bytes_per_s = 192 / 40.0});
  SimResult result = SimulateOrFail(spec);
  EXPECT_DOUBLE_EQ(result.seconds, 48 + 32);
  EXPECT_NEAR(result.hidden_share, 1.0, 1e-12);
  spec.figures = Figures::Uniform(2, spec.figures.devices[0], {0.5, 192 / 60.0});
  result = SimulateOrFail(spec);
  EXPECT_DOUBLE_EQ(result.seconds, 60.5 + 32);
  for (const SimRank& rank : result.ranks) {
    EXPECT_DOUBLE_EQ(rank.busy_s, 48 + 32);
    EXPECT_DOUBLE_EQ(rank.wait_s, 12.5);
    EXPECT_DOUBLE_EQ(rank.lane_s, 60.5);
    EXPECT_EQ(rank.sent_bytes, 192);
  }
  EXPECT_DOUBLE_EQ(result.hidden_share, 1 - 12.5 / 60.5);
}

// Queries have 8 rows * 4 * 2 bytes, states 8 * (2 + 4) * 4, and a header each: 128 and 256 bytes.
TEST(Simulate, PassQReturnsTheStatesOfTheLastRoundInTheOpen) {
  SimSpec spec = AttentionOnly(2, {.latency_s = 0.5, .bytes_per_s = 64});
  spec.way.strategy = RingStrategy::kPassQ;
  const SimResult result = SimulateOrFail(spec);
  EXPECT_DOUBLE_EQ(result.seconds, 48 + 32 + 0.5 + 256 / 64.0);
  EXPECT_EQ(result.ranks[0].sent_bytes, 128 + 256);
  EXPECT_DOUBLE_EQ(result.ranks[0].lane_s, 2 * 0.5 + (128 + 256) / 64.0);
}

// In the ring, a slow rank passes the others' shards on late; a gather does not wait for it.
TEST(Simulate, GatherKvDoesNotWaitForASlowRankToPassShardsOn) {
  SimSpec spec = AttentionOnly(4, {.latency_s = 0.5, .bytes_per_s = 50});
  spec.chunk_tokens = {128};
  spec.figures.devices[1].large_tile.flops_per_s /= 4;
  spec.figures.devices[1].small_tile.flops_per_s /= 4;
  auto finish_of_fast_ranks = [&](RingStrategy strategy) {
    spec.way.strategy = strategy;
    spec.trace = true;
    const SimResult result = SimulateOrFail(spec);
    Instant latest{};
    for (const size_t r : {size_t{0}, size_t{2}, size_t{3}}) {
      for (const TraceSpan& span : result.ranks[r].trace) {
        if (span.label.kind == OpKind::kAttend) latest = std::max(latest, span.end);
      }
    }
    return Seconds(latest.time_since_epoch());
  };
  EXPECT_LT(finish_of_fast_ranks(RingStrategy::kGatherKv),
            finish_of_fast_ranks(RingStrategy::kPassKv));
}

// Eight all-gathers, and no time for anything else.
TEST(Simulate, ReplicatedTokensGatherFourTimesALayer) {
  SimSpec spec = AttentionOnly(2, {.latency_s = 1, .bytes_per_s = kFast});
  for (DeviceFigures& f : spec.figures.devices) {
    f.large_tile.flops_per_s = f.small_tile.flops_per_s = kFast;
  }
  spec.way.mode = TokenMode::kReplicated;
  spec.cached_tokens = 4;
  spec.chunk_tokens = {2};
  EXPECT_NEAR(SimulateOrFail(spec).seconds, 8, 1e-9);
}

// Rows that were dealt go home within the layer, before anybody attends to them.
TEST(Simulate, DealtRowsArriveBeforeAttention) {
  // Positions 4..7 live on rank 1; a rank has two of the rows, so rank 0 sends two: 2 * 16 bytes
  // and a header.
  SimSpec spec = AttentionOnly(2, {.latency_s = 0.5, .bytes_per_s = 96});
  spec.shape.layers = 1;
  spec.way.mode = TokenMode::kDealt;
  spec.cached_tokens = 4;
  spec.chunk_tokens = {4};
  const SimResult result = SimulateOrFail(spec);
  EXPECT_DOUBLE_EQ(result.seconds, 0.5 + 96 / 96.0);
  EXPECT_EQ(result.ranks[0].sent_bytes, 96);
  EXPECT_EQ(result.ranks[1].sent_bytes, 0);
}

TEST(Simulate, ChunksFollowEachOther) {
  SimSpec spec = AttentionOnly(2, {.latency_s = 0, .bytes_per_s = kFast});
  spec.chunk_tokens = {16, 16};
  // Each row of the second chunk sees 8 more keys on each rank.
  EXPECT_NEAR(SimulateOrFail(spec).seconds, (48 + 32) + (48 + 32 + 8 * 16), 1e-9);
  EXPECT_EQ(SimulateOrFail(spec).ranks[0].work.product_rows, 2 * 8 * 3);
}

// Documents of 4 tokens, one a stripe: each row sees one page, on its own rank.
TEST(Simulate, DocumentsCostTheSumOfTheirSquares) {
  SimSpec spec = AttentionOnly(2, {.latency_s = 0, .bytes_per_s = kFast});
  spec.document_starts = {0, 4, 8, 12};
  const SimResult result = SimulateOrFail(spec);
  EXPECT_NEAR(result.seconds, 8 * 4, 1e-9);
  EXPECT_EQ(result.ranks[0].work.attention_pairs, 2 * (1 + 2 + 3 + 4));
  // A chunk of the last document alone moves the one page that it sees.
  spec.cached_tokens = 12;
  spec.chunk_tokens = {4};
  const SimResult last = SimulateOrFail(spec);
  EXPECT_NEAR(last.seconds, 4 * 4, 1e-9);
  EXPECT_EQ(last.ranks[0].sent_bytes, 64 + 64);
  EXPECT_EQ(last.ranks[1].sent_bytes, 64);
  spec.way.mode = TokenMode::kReplicated;
  EXPECT_EQ(SimulateOrFail(spec).ranks[0].work.attention_pairs, 2 * (1 + 2 + 3 + 4));
}

TEST(Simulate, EqualSpecsGiveEqualBits) {
  SimSpec spec = AttentionOnly(5, {.latency_s = 0.1, .bytes_per_s = 1000});
  spec.chunk_tokens = {700, 45};
  spec.wants_logits = true;
  for (const RingStrategy strategy :
       {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
    spec.way = {TokenMode::kDealt, strategy};
    const SimResult first = SimulateOrFail(spec);
    for (int i = 0; i < 5; ++i) {
      const SimResult again = SimulateOrFail(spec);
      EXPECT_EQ(again.seconds, first.seconds);
      EXPECT_EQ(again.hidden_share, first.hidden_share);
    }
  }
}

}  // namespace
}  // namespace ringfill
