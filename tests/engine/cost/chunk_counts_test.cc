// The cost model's counts against the batches that the passes are given.
#include "engine/cost/chunk_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/prefill/row_layout.h"

namespace ringfill {
namespace {

struct Setting {
  int ranks = 1;
  int stripe_tokens = 64;
  std::vector<Span> spans;
  std::vector<int64_t> document_starts;
  TokenMode mode = TokenMode::kHome;
  bool wants_logits = true;
  bool score = false;
  TileShape tiles;
};

StepPlan PlanOf(const Setting& setting, const Placement& placement) {
  StepPlan plan;
  plan.ranks = setting.ranks;
  plan.placements = {{setting.stripe_tokens, placement.slot_map()}};
  PrefillChunk chunk;
  chunk.spans = setting.spans;
  chunk.document_starts = StartsOf(setting.document_starts, setting.spans);
  for (const Span& span : chunk.spans) {
    chunk.tokens.resize(chunk.tokens.size() + static_cast<size_t>(span.size()));
  }
  chunk.mode = setting.mode;
  chunk.wants_logits = setting.wants_logits;
  chunk.score = setting.score;
  for (int r = 0; r < setting.ranks; ++r) {
    const int64_t tokens = placement.TokensBefore(r, chunk.end());
    std::vector<PageId>& pages = chunk.pages.emplace_back();
    pages.resize(
        static_cast<size_t>((tokens + setting.tiles.page_tokens - 1) / setting.tiles.page_tokens));
    std::iota(pages.begin(), pages.end(), PageId{0});
  }
  plan.chunks.push_back(std::move(chunk));
  return plan;
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The same counts, row by row, from what the passes make.
ChunkCounts CountBatches(const StepPlan& plan, const StepLayout& layout, const TileShape& tiles) {
  ChunkCounts counts;
  counts.tokens = static_cast<int64_t>(plan.chunks[0].tokens.size());
  counts.any_wanted = plan.chunks[0].wants_logits || plan.chunks[0].score;
  counts.rank_of_last = layout.RankOfLast(0);
  for (int r = 0; r < plan.ranks; ++r) {
    RankCount& rank = counts.ranks.emplace_back();
    const RowBatch batch = layout.MakeBatch(r);
    rank.rows = batch.rows();
    rank.pages = layout.PagesOn(0, r).count;
    for (const RowTile& tile : batch.tiles) {
      const int64_t rounded = RoundUp(tile.rows, tiles.row_granule);
      rank.rounded_rows += rounded;
      if (tile.wanted) rank.wanted_rounded_rows += rounded;
    }
    for (const KvSection& section : layout.SectionsOf(r)) rank.rows_home.push_back(section.rows);
    for (int s = 0; s < plan.ranks; ++s) {
      const AttendBatch attend = layout.MakeAttend({0}, r, s, {KvRun{}});
      AttendCount all, wanted;
      for (const QueryTile& tile : attend.tiles) {
        AttendCount count;
        for (int t = 0; t < tile.tokens; ++t) {
          const int64_t end = attend.visible[static_cast<size_t>(tile.row + t)];
          const int64_t keys = end == tile.begin
                                   ? 0
                                   : RoundUp(end, tiles.page_tokens) -
                                         tile.begin / tiles.page_tokens * tiles.page_tokens;
          count.token_keys += static_cast<double>(keys);
          count.tile_keys = static_cast<double>(keys);
        }
        for (AttendCount* into : {&all, tile.wanted ? &wanted : nullptr}) {
          if (into == nullptr) continue;
          into->token_keys += count.token_keys;
          into->tile_keys += count.tile_keys;
        }
      }
      rank.attend.push_back(all);
      rank.wanted_attend.push_back(wanted);
    }
  }
  return counts;
}

void ExpectEqual(const AttendCount& got, const AttendCount& expected, const char* what) {
  EXPECT_DOUBLE_EQ(got.token_keys, expected.token_keys) << what;
  EXPECT_DOUBLE_EQ(got.tile_keys, expected.tile_keys) << what;
}

void ExpectCountsOfBatches(const Setting& setting) {
  const Placement placement(setting.ranks, setting.stripe_tokens);
  const StepPlan plan = PlanOf(setting, placement);
  const StepLayout layout(plan, {&placement},
                          {.page_tokens = static_cast<int>(setting.tiles.page_tokens),
                           .tile_rows = static_cast<int>(setting.tiles.product_rows),
                           .query_tokens = static_cast<int>(setting.tiles.query_tokens)});
  const ChunkCounts expected = CountBatches(plan, layout, setting.tiles);
  const ChunkCounts got = CountChunk(plan.chunks[0], placement, setting.mode, setting.tiles);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.any_wanted, expected.any_wanted);
  EXPECT_EQ(got.rank_of_last, expected.rank_of_last);
  ASSERT_EQ(got.ranks.size(), expected.ranks.size());
  for (size_t r = 0; r < got.ranks.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    EXPECT_EQ(got.ranks[r].rows, expected.ranks[r].rows);
    EXPECT_EQ(got.ranks[r].rounded_rows, expected.ranks[r].rounded_rows);
    EXPECT_EQ(got.ranks[r].wanted_rounded_rows, expected.ranks[r].wanted_rounded_rows);
    EXPECT_EQ(got.ranks[r].pages, expected.ranks[r].pages);
    EXPECT_EQ(got.ranks[r].rows_home, expected.ranks[r].rows_home);
    for (size_t s = 0; s < got.ranks.size(); ++s) {
      ExpectEqual(got.ranks[r].attend[s], expected.ranks[r].attend[s], "all");
      ExpectEqual(got.ranks[r].wanted_attend[s], expected.ranks[r].wanted_attend[s], "wanted");
    }
  }
}

TEST(ChunkCounts, AreThoseOfTheBatches) {
  std::mt19937 random(20240617);
  auto up_to = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 300; ++i) {
    Setting setting;
    setting.ranks = 1 + static_cast<int>(up_to(8));
    setting.tiles.page_tokens = int64_t{16} << up_to(3);
    setting.stripe_tokens = static_cast<int>(setting.tiles.page_tokens << up_to(3));
    setting.tiles.product_rows = int64_t{32} << up_to(3);
    setting.tiles.query_tokens = 1 + up_to(192);
    setting.tiles.row_granule = int64_t{1} << up_to(5);
    int64_t begin = up_to(2) * up_to(5000);
    for (int64_t s = up_to(3); s >= 0; --s) {
      const int64_t end = begin + 1 + up_to(i % 3 == 0 ? 40 : 3000);
      setting.spans.push_back({begin, end});
      begin = end + 1 + up_to(300);
    }
    if (i % 4 >= 2) {
      for (int64_t start = up_to(3000); start < begin; start += 1 + up_to(i % 8 == 2 ? 50 : 2000)) {
        setting.document_starts.push_back(start);
      }
    }
    setting.mode = i % 2 == 0 ? TokenMode::kHome : TokenMode::kDealt;
    setting.wants_logits = up_to(2) == 0;
    setting.score = up_to(4) == 0;
    SCOPED_TRACE("setting " + std::to_string(i));
    ExpectCountsOfBatches(setting);
    if (HasFailure()) return;
  }
}

TEST(ChunkCounts, ReplicatedTokensOfTwoDocuments) {
  const Placement placement(1, 4);
  PrefillChunk chunk;
  chunk.spans = {{5, 9}};
  chunk.document_starts = {2, 7};
  // 5 and 6 see [2, 6) and [2, 7): 4 and 5 keys or pages of one; 7 and 8 see 1 and 2.
  ExpectEqual(CountReplicated(chunk, placement, 1, 4)[0], {4 + 5 + 1 + 2, 5 + 2}, "keys");
  ExpectEqual(CountReplicated(chunk, placement, 4, 4)[0], {8 + 8 + 4 + 8, 8 + 8}, "whole pages");
}

TEST(ChunkCounts, ReplicatedTokensSeeWholePages) {
  const Placement placement(2, 4);
  PrefillChunk chunk;
  chunk.spans = {{5, 7}};
  // Positions 0..3 lie on rank 0, 4..7 on rank 1. Position 5 sees 4 and 2 keys, position 6 sees 4
  // and 3.
  std::vector<AttendCount> counts = CountReplicated(chunk, placement, 4, 1);
  ExpectEqual(counts[0], {8, 8}, "rank 0");
  ExpectEqual(counts[1], {8, 8}, "rank 1");
  counts = CountReplicated(chunk, placement, 1, 2);
  ExpectEqual(counts[0], {8, 4}, "rank 0");
  ExpectEqual(counts[1], {5, 3}, "rank 1");
}

}  // namespace
}  // namespace ringfill
