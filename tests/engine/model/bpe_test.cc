#include "engine/model/bpe.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Merge(const MergeTable& table, const std::vector<int32_t>& symbols) {
  BpeMerger merger(table);
  std::vector<int32_t> out;
  merger.Append(symbols, out);
  return out;
}

// The definition, word for word: find the best pair, merge it, start again.
std::vector<int32_t> MergeReference(const MergeTable& table, std::vector<int32_t> symbols) {
  while (true) {
    const MergeTable::Merge* best = nullptr;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge* merge = table.Find(symbols[i], symbols[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        best_at = i;
      }
    }
    if (best == nullptr) return symbols;
    symbols[best_at] = best->merged;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

// Random merges over `letters` symbols; in training order when asked.
MergeTable RandomTable(int letters, int merges, bool in_order, std::mt19937& random) {
  MergeTable table;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int32_t next = letters; next < letters + merges; ++next) {
    const auto limit = static_cast<uint32_t>(next);
    pairs.emplace_back(random() % limit, random() % limit);
  }
  std::vector<int> order(merges);
  for (int i = 0; i < merges; ++i) order[i] = i;
  if (!in_order) std::shuffle(order.begin(), order.end(), random);
  for (int i : order) table.Add(pairs[i].first, pairs[i].second, letters + i);
  return table;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  MergeTable table;
  table.Add(1, 2, 10);   // 0
  table.Add(0, 1, 11);   // 1
  table.Add(10, 2, 12);  // 2
  table.Add(3, 3, 13);   // 3
  EXPECT_THAT(Merge(table, {0, 1, 2}), ElementsAre(0, 10));
  EXPECT_THAT(Merge(table, {0, 1, 0}), ElementsAre(11, 0));
  EXPECT_THAT(Merge(table, {1, 2, 2}), ElementsAre(12));
  EXPECT_THAT(Merge(table, {3, 3, 3}), ElementsAre(13, 3));
  EXPECT_THAT(Merge(table, {5}), ElementsAre(5));
  EXPECT_THAT(Merge(table, {}), IsEmpty());
}

TEST(Bpe, TheFirstOfEqualPairsCounts) {
  MergeTable table;
  table.Add(1, 2, 10);
  table.Add(1, 2, 11);
  EXPECT_THAT(Merge(table, {1, 2}), ElementsAre(10));
}

TEST(Bpe, MissingSymbolsSeparateAndVanish) {
  MergeTable table;
  table.Add(1, 2, 10);
  EXPECT_THAT(Merge(table, {1, -1, 2, 1, 2}), ElementsAre(1, 2, 10));
  EXPECT_THAT(Merge(table, {-1, -1}), IsEmpty());
}

TEST(Bpe, KnowsTrainingOrder) {
  MergeTable table;
  table.Add(1, 2, 10);
  table.Add(10, 1, 11);
  EXPECT_TRUE(table.in_training_order());
  table.Add(5, 6, 1);
  EXPECT_FALSE(table.in_training_order());
}

TEST(Bpe, EqualsTheDefinitionOnRandomTables) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const bool in_order = round % 2 == 0;
    const int letters = 1 + static_cast<int>(random() % 6);
    const MergeTable table = RandomTable(letters, 40, in_order, random);
    EXPECT_TRUE(!in_order || table.in_training_order());
    // On both sides of the length where the way of working changes.
    const size_t length = round % 3 == 0 ? BpeMerger::kLongWord + random() % 300 : random() % 40;
    std::vector<int32_t> symbols(length);
    for (int32_t& s : symbols) s = static_cast<int32_t>(random() % static_cast<uint32_t>(letters));
    if (length > 4) symbols[length / 2] = -1;
    std::vector<int32_t> wanted = MergeReference(table, symbols);
    std::erase(wanted, -1);
    ASSERT_EQ(Merge(table, symbols), wanted) << "round " << round;
  }
}

// One symbol made by several merges, as in vocabularies that list every way to make a token: pairs
// of it are found out of order.
TEST(Bpe, EqualPairsFoundOutOfOrderGoLeftmostFirst) {
  MergeTable table;
  table.Add(0, 1, 10);
  table.Add(2, 3, 10);
  table.Add(10, 10, 11);
  ASSERT_TRUE(table.in_training_order());
  std::vector<int32_t> symbols, wanted;
  while (symbols.size() < 2 * BpeMerger::kLongWord) {
    symbols.insert(symbols.end(), {2, 3, 0, 1, 0, 1, 5});
    wanted.insert(wanted.end(), {11, 10, 5});
  }
  EXPECT_EQ(Merge(table, symbols), wanted);
}

TEST(Bpe, WorkIsLinearInTheWord) {
  std::mt19937 random(5);
  for (bool in_order : {true, false}) {
    const MergeTable table = RandomTable(4, 200, in_order, random);
    for (size_t length : {size_t{10}, size_t{1000}, size_t{100000}}) {
      for (bool one_letter : {true, false}) {
        std::vector<int32_t> symbols(length);
        for (int32_t& s : symbols) s = one_letter ? 0 : static_cast<int32_t>(random() % 4);
        BpeMerger merger(table);
        std::vector<int32_t> out;
        merger.Append(symbols, out);
        EXPECT_LE(merger.steps(), 3 * length);
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
