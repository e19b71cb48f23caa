#include "engine/compute/cuda/token_lists.h"

#include "gtest/gtest.h"

namespace ringfill {
namespace {

constexpr gpu::DecodePlanOptions kOptions{.group = 4, .kv_heads = 2, .blocks = 64};

// Decodes of as many runs, of `visible` keys each.
Device::TokenBatch Decodes(int tokens, int64_t visible) {
  Device::TokenBatch batch;
  for (int t = 0; t < tokens; ++t) {
    batch.token.push_back(7 + t);
    batch.position.push_back(visible - 1);
    batch.run.push_back(t);
    batch.visible.push_back(visible);
    batch.begin.push_back(t);
    batch.runs.push_back({{static_cast<PageId>(t), static_cast<PageId>(t + 100)}, 0});
    batch.stores.push_back({t, 1, static_cast<PageId>(t + 100), 5});
  }
  return batch;
}

TEST(PaddedTokensTest, IsAPowerOfTwoUpToTheBound) {
  for (const auto& [tokens, rows] : {std::pair<int64_t, int64_t>{0, 0},
                                     {1, 1},
                                     {2, 2},
                                     {3, 4},
                                     {33, 64},
                                     {64, 64},
                                     {65, 65},
                                     {256, 256}}) {
    EXPECT_EQ(PaddedTokens(tokens), rows) << tokens;
  }
}

TEST(TokenListsTest, RowsBeyondTheTokensSeeNothingAndAreStoredNowhere) {
  const TokenLists lists(Decodes(5, 90), kOptions);
  ASSERT_EQ(lists.rows(), 8);
  for (size_t t = 0; t < 8; ++t) {
    const bool real = t < 5;
    EXPECT_EQ(lists.token[t], real ? 7 + static_cast<int>(t) : 0);
    EXPECT_EQ(lists.position[t], real ? 89 : 0);
    EXPECT_EQ(lists.visible[t], real ? 90 : 0);
    EXPECT_EQ(lists.begin[t], real ? static_cast<int64_t>(t) : 0);
    EXPECT_EQ(lists.targets[t].page, real ? 100 + t : gpu::KvTarget::kNoPage);
  }
  // Every row has its state written, those that see nothing too.
  int64_t rows = 0;
  for (const gpu::DecodeWork& item : lists.work) {
    rows += item.rows;
    if (item.rows == 0) continue;
    EXPECT_LT(static_cast<size_t>(item.run), lists.runs.size());
    EXPECT_EQ(item.part, -1);
    EXPECT_EQ(item.end_key, item.row / 4 < 5 ? 90 : 0);
  }
  EXPECT_EQ(rows, 8 * 4);
}

// What launches and addresses follow from.
struct Extents {
  explicit Extents(const TokenLists& lists)
      : rows(lists.rows()),
        runs(lists.runs.size()),
        pages(lists.pages.size()),
        work(lists.work.size()),
        merge(lists.merge.size()),
        parts(lists.parts) {}
  bool operator==(const Extents&) const = default;
  int64_t rows;
  size_t runs, pages, work, merge;
  int64_t parts;
};

TEST(TokenListsTest, StepsOfABucketHaveEqualExtents) {
  const Extents five(TokenLists(Decodes(5, 2000), kOptions));
  EXPECT_EQ(Extents(TokenLists(Decodes(6, 2000), kOptions)), five);
  EXPECT_EQ(Extents(TokenLists(Decodes(5, 2001), kOptions)), five);
  EXPECT_FALSE(Extents(TokenLists(Decodes(9, 2000), kOptions)) == five);
}

TEST(TokenListsTest, LargeBatchesAreNotPadded) {
  const TokenLists lists(Decodes(70, 10), kOptions);
  EXPECT_EQ(lists.rows(), 70);
  EXPECT_EQ(lists.pages.size(), 140u);
  for (const gpu::DecodeWork& item : lists.work) EXPECT_GT(item.rows, 0);
}

TEST(TokenListsTest, DocumentsAndRunsAreWorkOfTheirOwn) {
  Device::TokenBatch batch = Decodes(1, 40);
  batch.token.assign(4, 1);
  batch.position.assign(4, 0);
  batch.run.assign(4, 0);
  batch.visible = {40, 41, 42, 43};
  batch.begin = {0, 0, 42, 42};
  const TokenLists lists(batch, {.group = 1, .kv_heads = 1, .blocks = 1});
  ASSERT_EQ(lists.work.size(), 2u);
  EXPECT_EQ(lists.work[0].rows, 2);
  EXPECT_EQ(lists.work[1].row, 2);
  EXPECT_EQ(lists.work[1].end_key, 43);
  batch.begin.clear();
  EXPECT_EQ(TokenLists(batch, {.group = 1, .kv_heads = 1, .blocks = 1}).work.size(), 1u);
}

}  // namespace
}  // namespace ringfill
