#include "engine/layout/placement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace ringfill {
namespace {

constexpr int kMaxRanks = 8;
constexpr int kStripeTokens[] = {1, 16, 64};

// Rank of a stripe, straight from the definition.
int DefinedRank(const std::vector<int>& map, int64_t stripe) {
  const int64_t slots = static_cast<int64_t>(map.size());
  const int64_t k = stripe % (2 * slots);
  return map[k < slots ? k : 2 * slots - 1 - k];
}

// Walks positions one by one over `positions` tokens, counting, and compares every query.
void ExpectEqualsWalk(const Placement& placement, int64_t positions) {
  const int stripe_tokens = placement.stripe_tokens();
  std::vector<int64_t> tokens(placement.ranks()), stripes(placement.ranks());
  for (int64_t x = 0; x < positions; ++x) {
    const int64_t stripe = x / stripe_tokens;
    const int home = DefinedRank(placement.slot_map(), stripe);
    ASSERT_EQ(placement.Home(x), home) << x;
    ASSERT_EQ(placement.LocalToken(x), tokens[home]) << x;
    ASSERT_EQ(placement.PositionAt(home, tokens[home]), x);
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      ASSERT_EQ(placement.TokensBefore(rank, x), tokens[rank]) << rank << " " << x;
    }
    if (x % stripe_tokens == 0) {
      ASSERT_EQ(placement.RankOfStripe(stripe), home) << stripe;
      ASSERT_EQ(placement.StripeAt(home, stripes[home]), stripe);
      for (int rank = 0; rank < placement.ranks(); ++rank) {
        ASSERT_EQ(placement.StripesBefore(rank, stripe), stripes[rank]) << rank << " " << stripe;
      }
      ++stripes[home];
    }
    ++tokens[home];
  }
}

TEST(PlacementTest, EqualsAWalkOverManyPeriods) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int stripe_tokens : kStripeTokens) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, stripes of " << stripe_tokens);
      const Placement placement(ranks, stripe_tokens);
      const int64_t period = int64_t{8} * ranks * stripe_tokens;
      ExpectEqualsWalk(placement, 5 * period + 3);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PlacementTest, HealthyMapIsThePlainSnake) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const Placement placement(ranks, 16);
    ASSERT_EQ(placement.slots(), 4 * ranks);
    for (int64_t stripe = 0; stripe < 100 * ranks; ++stripe) {
      const int k = static_cast<int>(stripe % (2 * ranks));
      ASSERT_EQ(placement.RankOfStripe(stripe), k < ranks ? k : 2 * ranks - 1 - k)
          << ranks << " ranks, stripe " << stripe;
    }
  }
}

TEST(PlacementTest, SlotsFallAsASnake) {
  const Placement placement(1, 4, {0, 0, 0});
  const int expected[] = {0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0};
  for (int stripe = 0; stripe < 13; ++stripe) {
    EXPECT_EQ(placement.SlotOfStripe(stripe), expected[stripe]) << stripe;
  }
}

// Stripes of L/2N tokens: rank r keeps chunk r and chunk 2N-1-r of the sequence.
TEST(PlacementTest, OneSnakeOverTheSequenceIsZigzag) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const int stripe_tokens = 37;
    const int64_t length = int64_t{2} * ranks * stripe_tokens;
    const Placement placement(ranks, stripe_tokens);
    for (int64_t x = 0; x < length; ++x) {
      const int64_t chunk = x / stripe_tokens;
      const int64_t rank = chunk < ranks ? chunk : 2 * ranks - 1 - chunk;
      ASSERT_EQ(placement.Home(x), rank);
      ASSERT_EQ(placement.LocalToken(x), x % stripe_tokens + (chunk < ranks ? 0 : stripe_tokens));
    }
  }
}

TEST(PlacementTest, AnySlotMapEqualsAWalk) {
  const std::vector<std::vector<int>> maps = {
      {0},
      {2},
      {1, 1, 1, 0},
      {3, 0, 3, 3, 0, 2, 3},
      {0, 2, 2, 0, 0, 2, 2, 0, 4, 4, 0, 2},  // ranks 1 and 3 own nothing
  };
  for (const std::vector<int>& map : maps) {
    for (const int stripe_tokens : kStripeTokens) {
      const Placement placement(5, stripe_tokens, map);
      ExpectEqualsWalk(placement, static_cast<int64_t>(map.size()) * stripe_tokens * 9 + 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PlacementTest, RandomSlotMapsEqualAWalk) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    const int ranks = 1 + static_cast<int>(random() % kMaxRanks);
    std::vector<int> map(1 + random() % 32);
    for (int& rank : map) rank = static_cast<int>(random() % ranks);
    ExpectEqualsWalk(Placement(ranks, 1 + static_cast<int>(random() % 5), map), 500);
    if (HasFatalFailure()) return;
  }
}

TEST(PlacementTest, RankWithoutSlotsHoldsNothing) {
  const Placement placement(3, 16, {0, 2, 2, 0});
  for (int64_t x : {int64_t{0}, int64_t{1000}, int64_t{4'000'000'001}}) {
    EXPECT_EQ(placement.TokensBefore(1, x), 0);
    EXPECT_EQ(placement.StripesBefore(1, x), 0);
  }
}

// After every 2*N*S tokens each rank has 2*S more of them, and equally many causal (query, key)
// pairs as every other.
TEST(PlacementTest, TokensAndCausalWorkBalanceExactly) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int stripe_tokens : kStripeTokens) {
      const Placement placement(ranks, stripe_tokens);
      const int64_t snake = int64_t{2} * ranks * stripe_tokens;
      std::vector<int64_t> work(ranks);
      for (int64_t begin = 0; begin < 6 * snake; begin += snake) {
        for (int64_t x = begin; x < begin + snake; ++x) work[placement.Home(x)] += x + 1;
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_EQ(placement.TokensBefore(rank, begin + snake), (begin + snake) / ranks);
          ASSERT_EQ(work[rank], work[0]) << ranks << " ranks, rank " << rank;
        }
      }
    }
  }
}

TEST(PlacementTest, PositionsInTheBillions) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int stripe_tokens : kStripeTokens) {
      const Placement placement(ranks, stripe_tokens);
      for (const int64_t base :
           {int64_t{1} << 31, int64_t{1} << 32, int64_t{5'000'000'011}, int64_t{1} << 50}) {
        for (int64_t x = base - 200; x < base + 200; ++x) {
          const int home = placement.Home(x);
          const int64_t local = placement.LocalToken(x);
          ASSERT_EQ(home, DefinedRank(placement.slot_map(), x / stripe_tokens));
          ASSERT_EQ(placement.PositionAt(home, local), x);
          ASSERT_EQ(placement.TokensBefore(home, x + 1), local + 1);
          int64_t sum = 0;
          for (int rank = 0; rank < ranks; ++rank) sum += placement.TokensBefore(rank, x);
          ASSERT_EQ(sum, x);
        }
      }
    }
  }
}

TEST(PlacementDeathTest, BadMapsAreOurBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(Placement(2, 16, {0, 2}), "check failed");
  EXPECT_DEATH(Placement(2, 16, {-1}), "check failed");
  EXPECT_DEATH(Placement(2, 16, {}), "check failed");
  EXPECT_DEATH(Placement(0, 16), "check failed");
  EXPECT_DEATH(Placement(1, 0), "check failed");
  EXPECT_DEATH(Placement(2, 16, {0}).StripeAt(1, 0), "check failed");
}

}  // namespace
}  // namespace ringfill
