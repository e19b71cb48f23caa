#include "engine/prefill/row_layout.h"

#include "gtest/gtest.h"

namespace ringfill {
namespace {

StepPlan PlanOf(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  StepPlan plan;
  for (const auto& [begin, end] : ranges) {
    PrefillChunk chunk;
    chunk.begin = begin;
    chunk.end = end;
    plan.chunks.push_back(chunk);
  }
  return plan;
}

class RowLayoutTest : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(RowLayoutTest, EveryTokenHasOneRankAndEveryPieceFits) {
  const auto [ranks, stripe, page] = GetParam();
  const Placement placement(ranks, stripe);
  const StepPlan plan = PlanOf({{0, 1}, {5, 700}, {1000, 1003}, {63, 65}, {128, 256}});
  std::vector<std::vector<int>> seen;
  for (const PrefillChunk& chunk : plan.chunks) {
    seen.emplace_back(static_cast<size_t>(chunk.end - chunk.begin), 0);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const RowLayout layout = LayOutRows(plan, placement, rank,
                                        {.page_tokens = page, .tile_rows = 64, .query_tokens = 24});
    for (size_t r = 0; r < layout.position.size(); ++r) {
      const auto c = static_cast<size_t>(layout.chunk[r]);
      EXPECT_EQ(placement.Home(layout.position[r]), rank);
      ++seen[c][static_cast<size_t>(layout.position[r] - plan.chunks[c].begin)];
      // What a row sees over all ranks is its whole prefix.
      int64_t visible = 0;
      for (int s = 0; s < ranks; ++s) visible += layout.visible[static_cast<size_t>(s)][r];
      EXPECT_EQ(visible, layout.position[r] + 1);
    }
    int64_t row = 0;
    for (const PageSegment& segment : layout.segments) {
      EXPECT_EQ(segment.row, row);
      EXPECT_LE(segment.token_in_page + segment.rows, page);
      const int64_t local = placement.LocalToken(layout.position[static_cast<size_t>(segment.row)]);
      EXPECT_EQ(segment.local_page * page + segment.token_in_page, local);
      row += segment.rows;
    }
    EXPECT_EQ(row, layout.rows());
    row = 0;
    size_t segment = 0;
    for (const RowTile& tile : layout.tiles) {
      EXPECT_EQ(tile.row, row);
      EXPECT_EQ(tile.first_segment, segment);
      EXPECT_LE(tile.rows, std::max(64, page));
      row += tile.rows;
      segment = tile.last_segment;
    }
    EXPECT_EQ(row, layout.rows());
    row = 0;
    for (const QueryTile& tile : layout.queries) {
      EXPECT_EQ(tile.row, row);
      EXPECT_LE(tile.tokens, 24);
      row += tile.tokens;
    }
    EXPECT_EQ(row, layout.rows());
  }
  for (const auto& counts : seen) {
    for (int count : counts) EXPECT_EQ(count, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowLayoutTest,
                         testing::Combine(testing::Values(1, 2, 3, 8), testing::Values(64, 128),
                                          testing::Values(16, 64)));

// Work balances: over whole periods every rank has equally many rows and equal causal work.
TEST(RowLayoutTest, CausalWorkBalancesOverWholePeriods) {
  const Placement placement(4, 64);
  const StepPlan plan = PlanOf({{0, 2 * 4 * 64 * 3}});
  std::vector<int64_t> rows, work;
  for (int rank = 0; rank < 4; ++rank) {
    const RowLayout layout = LayOutRows(plan, placement, rank, {});
    rows.push_back(layout.rows());
    int64_t sum = 0;
    for (int64_t p : layout.position) sum += p / 64;
    work.push_back(sum);
  }
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(rows[static_cast<size_t>(rank)], rows[0]);
    EXPECT_EQ(work[static_cast<size_t>(rank)], work[0]);
  }
}

}  // namespace
}  // namespace ringfill
