#include "engine/layout/slot_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/layout/placement.h"

namespace ringfill {
namespace {

using testing::Each;
using testing::ElementsAre;

// How many slots changed hands among ranks that are in both epochs, or left a rank that survives.
int Moves(const std::vector<int>& before, const std::vector<int>& after,
          const std::vector<int>& from) {
  int moves = 0;
  for (size_t s = 0; s < before.size(); ++s) {
    const bool owner_lives = std::find(from.begin(), from.end(), before[s]) != from.end();
    if (owner_lives && from[static_cast<size_t>(after[s])] != before[s]) ++moves;
  }
  return moves;
}

std::vector<int> Without(int ranks, int dead) {
  std::vector<int> from;
  for (int r = 0; r < ranks; ++r) {
    if (r != dead) from.push_back(r);
  }
  return from;
}

TEST(SlotMapTest, HealthyIsASnake) {
  EXPECT_THAT(HealthySlotMap(1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(HealthySlotMap(3), ElementsAre(0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0));
}

TEST(SlotMapTest, EqualWeightsAreHealthy) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const std::vector<double> weights(static_cast<size_t>(ranks), 0.3);
    EXPECT_EQ(WeightedSlotMap(weights), HealthySlotMap(ranks)) << ranks;
  }
}

TEST(SlotMapTest, WeightsGiveSlotsByLargestRemainder) {
  EXPECT_THAT(SlotCounts(WeightedSlotMap(std::vector<double>{3, 1}), 2), ElementsAre(6, 2));
  EXPECT_THAT(SlotCounts(WeightedSlotMap(std::vector<double>{1, 1, 2}), 3), ElementsAre(3, 3, 6));
  // Shares of 12: 5.33, 3.56, 3.11.
  EXPECT_THAT(SlotCounts(WeightedSlotMap(std::vector<double>{6, 4, 3.5}), 3), ElementsAre(5, 4, 3));
  EXPECT_THAT(SlotCounts(WeightedSlotMap(std::vector<double>{1, 0}), 2), ElementsAre(8, 0));
}

// Any prefix of the slots holds each rank's share of it, within a slot and a half.
TEST(SlotMapTest, WeightedSlotsAreSpreadEvenly) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 12);
    std::vector<double> weights;
    for (int r = 0; r < ranks; ++r) weights.push_back(0.2 + static_cast<double>(random() % 100));
    const std::vector<int> map = WeightedSlotMap(weights);
    ASSERT_EQ(map.size(), static_cast<size_t>(kSlotsPerRank * ranks));
    const std::vector<int> counts = SlotCounts(map, ranks);
    double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int> so_far(static_cast<size_t>(ranks));
    for (size_t s = 0; s < map.size(); ++s) {
      ++so_far[static_cast<size_t>(map[s])];
      for (size_t r = 0; r < so_far.size(); ++r) {
        const double share = static_cast<double>(counts[r]) * static_cast<double>(s + 1) /
                             static_cast<double>(map.size());
        ASSERT_LE(std::abs(so_far[r] - share), 1.5) << "rank " << r << " after slot " << s;
      }
    }
    for (size_t r = 0; r < weights.size(); ++r) {
      ASSERT_LT(std::abs(counts[r] - weights[r] / sum * static_cast<double>(map.size())), 1.0);
    }
  }
}

// Every pair of slots k and 2V-1-k of a period has the same causal work, so work goes by slots.
TEST(SlotMapTest, CausalWorkOfAPeriodIsInProportionToSlots) {
  const std::vector<int> map = WeightedSlotMap(std::vector<double>{5, 2, 1});
  const std::vector<int> counts = SlotCounts(map, 3);
  const Placement placement(3, 4, map);
  const int64_t period = 2 * static_cast<int64_t>(map.size()) * 4;
  std::vector<int64_t> work(3);
  int64_t all = 0;
  for (int64_t p = 3 * period; p < 4 * period; ++p) {
    work[static_cast<size_t>(placement.Home(p))] += p + 1;
    all += p + 1;
  }
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(work[r] * static_cast<int64_t>(map.size()), all * counts[r]);
  }
}

TEST(SlotMapTest, SurvivorsKeepTheirsAndShareTheRestEvenly) {
  for (int ranks = 2; ranks <= 64; ++ranks) {
    const std::vector<int> healthy = HealthySlotMap(ranks);
    for (int dead = 0; dead < ranks; ++dead) {
      const std::vector<int> from = Without(ranks, dead);
      const std::vector<int> map = RedealSlots(healthy, from);
      ASSERT_EQ(Moves(healthy, map, from), 0);
      const std::vector<int> counts = SlotCounts(map, ranks - 1);
      const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
      ASSERT_LE(*most - *least, 1);
      ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 4 * ranks);
      // 1/8 above even, up to the ring where whole slots are coarser than that.
      const double even = 4.0 * ranks / (ranks - 1);
      if (ranks <= 10) {
        ASSERT_LE(*most / even, 1.126) << ranks;
      }
      ASSERT_EQ(map, RedealSlots(healthy, from));
    }
  }
}

// Even those who have more than their share.
TEST(SlotMapTest, SurvivorsOfAnUnevenMapKeepTheirs) {
  const std::vector<int> map = WeightedSlotMap(std::vector<double>{4, 2, 1, 1});
  const std::vector<int> from = {0, 1, 2};
  const std::vector<int> next = RedealSlots(map, from);
  EXPECT_EQ(Moves(map, next, from), 0);
  EXPECT_THAT(SlotCounts(next, 3), ElementsAre(8, 4, 4));
}

TEST(SlotMapTest, DeathsOneAfterAnotherStayEven) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    int ranks = 2 + static_cast<int>(random() % 15);
    std::vector<int> map = HealthySlotMap(ranks);
    while (ranks > 1) {
      const std::vector<int> from =
          Without(ranks, static_cast<int>(random() % static_cast<unsigned>(ranks)));
      const std::vector<int> next = RedealSlots(map, from);
      ASSERT_EQ(Moves(map, next, from), 0);
      map = next;
      ranks = static_cast<int>(from.size());
      const std::vector<int> counts = SlotCounts(map, ranks);
      const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
      ASSERT_LE(*most - *least, 1);
    }
  }
}

TEST(SlotMapTest, NewcomersTakeTheirShareWithTheFewestMoves) {
  for (int ranks = 2; ranks <= 32; ++ranks) {
    for (int dead = 0; dead < ranks; ++dead) {
      const std::vector<int> alone = RedealSlots(HealthySlotMap(ranks), Without(ranks, dead));
      std::vector<int> from(static_cast<size_t>(ranks - 1));
      std::iota(from.begin(), from.end(), 0);
      from.insert(from.begin() + dead, -1);
      const std::vector<int> map = RedealSlots(alone, from);
      ASSERT_THAT(SlotCounts(map, ranks), Each(kSlotsPerRank));
      // All that the newcomer has, and nothing else.
      ASSERT_EQ(Moves(alone, map, from), kSlotsPerRank);
    }
  }
}

// A rank is replaced within one epoch: its slots go to the newcomer, nothing else moves.
TEST(SlotMapTest, AReplacementTakesExactlyTheSlotsThatAreFree) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    std::vector<int> from = Without(ranks, 1);
    from.push_back(-1);
    const std::vector<int> healthy = HealthySlotMap(ranks);
    const std::vector<int> map = RedealSlots(healthy, from);
    EXPECT_EQ(Moves(healthy, map, from), 0);
    EXPECT_THAT(SlotCounts(map, ranks), Each(kSlotsPerRank));
  }
}

TEST(SlotMapTest, RandomEpochsStayEvenAndOwned) {
  std::mt19937 random(11);
  std::vector<int> map = HealthySlotMap(8);
  int ranks = 8;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> from;
    for (int r = 0; r < ranks; ++r) {
      if (random() % 5 != 0) from.push_back(r);
    }
    while (from.empty() || (from.size() < 12 && random() % 2 == 0)) from.push_back(-1);
    std::shuffle(from.begin(), from.end(), random);
    map = RedealSlots(map, from);
    ranks = static_cast<int>(from.size());
    ASSERT_EQ(map.size(), 32u);
    const std::vector<int> counts = SlotCounts(map, ranks);
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    ASSERT_LE(*most - *least, 1) << "round " << round;
  }
}

TEST(SlotMapTest, WeightsHoldAcrossADeath) {
  // Shares of 16 over weights 2, 1, 1: 8, 4, 4.
  const std::vector<int> map =
      RedealSlots(HealthySlotMap(4), Without(4, 3), std::vector<double>{2, 1, 1});
  EXPECT_THAT(SlotCounts(map, 3), ElementsAre(8, 4, 4));
}

TEST(SlotMapDeathTest, BadArgumentsAreOurBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(HealthySlotMap(0), "check failed");
  EXPECT_DEATH(WeightedSlotMap(std::vector<double>{0, 0}), "check failed");
  EXPECT_DEATH(WeightedSlotMap(std::vector<double>{1, -1}), "check failed");
  EXPECT_DEATH(RedealSlots({0, 1}, std::vector<int>{}), "check failed");
  EXPECT_DEATH(RedealSlots({0, 1}, std::vector<int>{1, 1}), "check failed");
}

}  // namespace
}  // namespace ringfill
