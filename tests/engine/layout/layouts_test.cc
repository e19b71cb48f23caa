#include "engine/layout/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/layout/placement.h"
#include "engine/layout/slot_map.h"

namespace ringfill {
namespace {

constexpr int kPage = 16;
constexpr int kStripe = 64;

Placement Make(Layout layout, int ranks, int64_t tokens) {
  return Placement(ranks, MakePlacement(layout, HealthySlotMap(ranks), kStripe, kPage, tokens));
}

struct Balance {
  double tokens, work;  // max over mean
};

Balance BalanceOf(const Placement& placement, int64_t length) {
  std::vector<double> tokens(static_cast<size_t>(placement.ranks())), work(tokens.size());
  for (int64_t p = 0; p < length; ++p) {
    const auto rank = static_cast<size_t>(placement.Home(p));
    tokens[rank] += 1;
    work[rank] += static_cast<double>(p + 1);
  }
  const auto ratio = [](const std::vector<double>& v) {
    return *std::max_element(v.begin(), v.end()) * static_cast<double>(v.size()) /
           std::accumulate(v.begin(), v.end(), 0.0);
  };
  return {ratio(tokens), ratio(work)};
}

TEST(LayoutsTest, NamesRoundTrip) {
  for (int i = 0; i < kLayouts; ++i) {
    const auto layout = static_cast<Layout>(i);
    EXPECT_EQ(ParseLayout(LayoutName(layout)), layout);
  }
  EXPECT_EQ(ParseLayout("spiral"), std::nullopt);
}

TEST(LayoutsTest, SnakeIsTheEpochsMap) {
  const std::vector<int> map = {2, 0, 1, 1};
  const PlacementSpec spec = MakePlacement(Layout::kSnake, map, kStripe, kPage, 5);
  EXPECT_EQ(spec.stripe_tokens, kStripe);
  EXPECT_EQ(spec.slot_map, map);
  EXPECT_EQ(MakePlacement(Layout::kTokenStripes, map, kStripe, kPage, 5), (PlacementSpec{1, map}));
}

TEST(LayoutsTest, ContiguousIsOneRunARank) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t length : {1, 15, 16, 17, 1000, 4096, 5003}) {
      const Placement placement = Make(Layout::kContiguous, ranks, length);
      const int64_t run = ((length + ranks - 1) / ranks + kPage - 1) / kPage * kPage;
      for (int64_t p = 0; p < length; ++p) ASSERT_EQ(placement.Home(p), p / run) << length;
    }
  }
}

TEST(LayoutsTest, ZigzagIsTwoMirroredRunsARank) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t length : {1, 17, 1000, 4096, 5003}) {
      const Placement placement = Make(Layout::kZigzag, ranks, length);
      const int64_t parts = 2 * ranks;
      const int64_t run = ((length + parts - 1) / parts + kPage - 1) / kPage * kPage;
      for (int64_t p = 0; p < length; ++p) {
        const int64_t part = p / run;
        ASSERT_EQ(placement.Home(p), part < ranks ? part : parts - 1 - part) << length;
      }
    }
  }
}

TEST(LayoutsTest, RunsAreAsLongAsSharesWhenSlotsAreUneven) {
  // Slots 6 and 2: shares 3/4 and 1/4.
  const std::vector<int> map = WeightedSlotMap(std::vector<double>{3, 1});
  const Placement contiguous(2, MakePlacement(Layout::kContiguous, map, kStripe, kPage, 4096));
  EXPECT_EQ(contiguous.TokensBefore(0, 4096), 3072);
  EXPECT_EQ(contiguous.Home(3071), 0);
  EXPECT_EQ(contiguous.Home(3072), 1);
  const Placement zigzag(2, MakePlacement(Layout::kZigzag, map, kStripe, kPage, 4096));
  EXPECT_EQ(zigzag.TokensBefore(0, 4096), 3072);
  EXPECT_EQ(zigzag.Home(4095), 0);
  EXPECT_EQ(zigzag.Home(2048), 1);
}

TEST(LayoutsTest, RanksWithoutSlotsGetNothing) {
  const std::vector<int> map = {0, 2, 2, 0};
  for (int i = 0; i < kLayouts; ++i) {
    const Placement placement(3, MakePlacement(static_cast<Layout>(i), map, kStripe, kPage, 1000));
    EXPECT_EQ(placement.TokensBefore(1, 5000), 0);
    EXPECT_EQ(placement.TokensBefore(0, 5000) + placement.TokensBefore(2, 5000), 5000);
  }
}

// What docs/BENCHMARKS.md shows: bench/layout_balance.
TEST(LayoutsTest, BalanceOfFourRanksAt32KTokens) {
  constexpr int64_t kLength = 32768;
  const auto balance = [](Layout layout) { return BalanceOf(Make(layout, 4, kLength), kLength); };
  for (const Layout even : {Layout::kSnake, Layout::kZigzag, Layout::kTokenStripes}) {
    EXPECT_NEAR(balance(even).tokens, 1.0, 1e-9) << LayoutName(even);
    EXPECT_NEAR(balance(even).work, 1.0, 1e-3) << LayoutName(even);
  }
  EXPECT_NEAR(balance(Layout::kContiguous).tokens, 1.0, 1e-9);
  EXPECT_NEAR(balance(Layout::kContiguous).work, 1.75, 1e-3);
}

// Only the snake and token stripes stay even when the length is not what was planned.
TEST(LayoutsTest, PositionsPastTheLength) {
  constexpr int64_t kLength = 32768;
  EXPECT_LE(BalanceOf(Make(Layout::kSnake, 4, kLength), 40000).work, 1.03);
  EXPECT_GE(BalanceOf(Make(Layout::kContiguous, 4, kLength), 40000).work, 1.8);
}

TEST(LayoutsTest, HugeSequences) {
  const PlacementSpec spec =
      MakePlacement(Layout::kContiguous, HealthySlotMap(1), kStripe, kPage, int64_t{1} << 40);
  EXPECT_GT(spec.stripe_tokens, 0);
  EXPECT_EQ(spec.stripe_tokens % kPage, 0);
}

}  // namespace
}  // namespace ringfill
