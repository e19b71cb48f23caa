#include "engine/compute/cuda/kernels/attention_work.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace ringfill::gpu {
namespace {

TEST(PlanPrefill, CoversEveryRowOnceLongestFirst) {
  const std::vector<TokenSpan> spans = {{0, 30, 0, 5, 100}, {30, 1, 1, 6, 7}, {40, 50, 2, 7, 900}};
  for (const int group : {1, 3, 8, 100}) {
    std::set<int64_t> rows;
    const std::vector<PrefillWork> work = PlanPrefill(spans, group);
    for (const PrefillWork& item : work) {
      EXPECT_GT(item.rows, 0);
      EXPECT_LE(item.rows, kPrefillRows);
      for (int64_t r = item.row; r < item.row + item.rows; ++r) {
        EXPECT_TRUE(rows.insert(r).second);
        const TokenSpan& span = spans[static_cast<size_t>(item.run)];
        EXPECT_GE(r / group, span.token);
        EXPECT_LT(r / group, span.token + span.tokens);
        EXPECT_EQ(item.bit, span.bit);
      }
    }
    EXPECT_EQ(rows.size(), static_cast<size_t>(81 * group));
    EXPECT_EQ(work.front().run, 2);
    EXPECT_EQ(work.front().row + work.front().rows, 90 * group);
    EXPECT_EQ(work.back().run, 1);
  }
  EXPECT_TRUE(PlanPrefill({}, 4).empty());
}

// Documents inside a prompt: what lies before them is work for nobody.
TEST(PlanPrefill, CountsTheKeysOfDocuments) {
  const std::vector<TokenSpan> spans = {{0, 1, 0, 0, 5000, 4990}, {1, 1, 1, 0, 100}};
  EXPECT_EQ(PlanPrefill(spans, 1).front().run, 1);
}

TEST(PlanDecode, DocumentsAreCoveredFromTheirFirstTile) {
  for (const int blocks : {1, 64}) {
    const std::vector<TokenSpan> spans = {{0, 1, 0, 0, 9000, 5003}, {1, 1, 1, 0, 77, 77}};
    const DecodePlan plan = PlanDecode(spans, {.group = 1, .kv_heads = 1, .blocks = blocks});
    int64_t next = 4992;
    for (const DecodeWork& item : plan.work) {
      if (item.run == 1) {
        EXPECT_EQ(item.part, -1);
        continue;
      }
      EXPECT_EQ(item.first_key, next);
      next = item.end_key;
    }
    EXPECT_EQ(next, 9000);
    // No part is shorter than keys are worth splitting for.
    EXPECT_LE(plan.parts, (9000 - 5003) / kMinSplitKeys);
    EXPECT_EQ(plan.parts > 0, blocks > 1);
  }
}

TEST(PlanDecode, SplitsCoverEveryKeyOnce) {
  for (const int blocks : {1, 16, 1000}) {
    const std::vector<TokenSpan> spans = {{0, 1, 0, 0, 0}, {1, 1, 1, 0, 255}, {2, 9, 2, 0, 10007}};
    const DecodePlan plan = PlanDecode(spans, {.group = 4, .kv_heads = 2, .blocks = blocks});
    int64_t keys = 0;
    std::set<int32_t> parts;
    for (const DecodeWork& item : plan.work) {
      EXPECT_LE(item.rows, kDecodeRows);
      EXPECT_EQ(item.first_key % kPrefillKeys, 0);
      keys += item.rows * (item.end_key - item.first_key);
      if (item.part < 0) continue;
      EXPECT_TRUE(parts.insert(item.part).second);
    }
    EXPECT_EQ(keys, 4 * (255 + 9 * 10007));
    EXPECT_EQ(static_cast<int64_t>(parts.size()), plan.parts);
    int64_t merged = 0;
    for (const MergeWork& merge : plan.merge) {
      EXPECT_GT(merge.parts, 1);
      merged += merge.parts;
    }
    EXPECT_EQ(merged, plan.parts);
    EXPECT_EQ(plan.parts == 0, blocks == 1);
    // 4 items of rows under 2 heads: no more than the wanted blocks, about.
    EXPECT_LE(static_cast<int64_t>(plan.work.size()) * 2, std::max(blocks + 16, 16));
  }
}

}  // namespace
}  // namespace ringfill::gpu
