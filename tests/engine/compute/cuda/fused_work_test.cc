// How an Attend is cut between a library and the kernels.
#include "engine/compute/cuda/fused_work.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using gpu::FusedEntry;
using gpu::TokenSpan;
using testing::IsEmpty;

struct Case {
  std::vector<TokenSpan> spans;
  std::vector<int64_t> visible;  // [rows]
  std::vector<bool> takes_run;
  FusedLimits limits;
};

AttentionSplit SplitOf(const Case& c) {
  return SplitAttention(c.spans, c.visible, c.takes_run, c.limits);
}

// Counts how often each key is attended to by each row.
class Coverage {
 public:
  explicit Coverage(const Case& c) : case_(c), seen_(c.visible.size()) {}

  void Add(const AttentionSplit& split) {
    for (const FusedEntry& e : split.entries) {
      const int64_t page = case_.limits.page_tokens;
      for (int64_t t = e.token; t < e.token + e.tokens; ++t) {
        AddKeys(t, e.run, e.bit, e.first_page * page, (e.first_page + e.pages) * page);
      }
    }
    for (const TokenSpan& s : split.before) {
      for (int64_t t = s.token; t < s.token + s.tokens; ++t) {
        AddKeys(t, s.run, s.bit, s.begin, s.visible);
      }
    }
    std::set<int64_t> rows;
    for (const TokenSpan& s : split.rest) {
      for (int64_t t = s.token; t < s.token + s.tokens; ++t) {
        EXPECT_TRUE(rows.insert(t).second) << "row " << t << " has two states to write";
        AddKeys(t, s.run, s.bit, s.begin, case_.visible[static_cast<size_t>(t)]);
      }
    }
  }

  // Every row has seen each key of its span once, and no others.
  void Expect() const {
    for (const TokenSpan& s : case_.spans) {
      for (int64_t t = s.token; t < s.token + s.tokens; ++t) {
        const auto row = static_cast<size_t>(t);
        std::vector<int> wanted(static_cast<size_t>(case_.visible[row]), 0);
        std::fill(wanted.begin() + static_cast<ptrdiff_t>(s.begin), wanted.end(), 1);
        std::vector<int> got = seen_[row];
        got.resize(std::max(got.size(), wanted.size()));
        EXPECT_TRUE(got == wanted) << "row " << t;
      }
    }
  }

 private:
  void AddKeys(int64_t token, int run, int bit, int64_t begin, int64_t end) {
    const auto of = [&](const TokenSpan& s) {
      return s.token <= token && token < s.token + s.tokens;
    };
    const auto span = std::find_if(case_.spans.begin(), case_.spans.end(), of);
    ASSERT_NE(span, case_.spans.end());
    EXPECT_EQ(span->run, run);
    EXPECT_EQ(span->bit, bit);
    std::vector<int>& seen = seen_[static_cast<size_t>(token)];
    if (begin < end) seen.resize(std::max(seen.size(), static_cast<size_t>(end)));
    for (int64_t k = begin; k < end; ++k) ++seen[static_cast<size_t>(k)];
  }

  const Case& case_;
  std::vector<std::vector<int>> seen_;  // [rows][keys]
};

void ExpectWithinLimits(const Case& c, const AttentionSplit& split) {
  int64_t last = std::numeric_limits<int64_t>::max();
  for (const FusedEntry& e : split.entries) {
    EXPECT_GT(e.tokens, 0);
    EXPECT_LE(e.tokens * c.limits.group, gpu::kFusedRows);
    EXPECT_GT(e.pages, 0);
    EXPECT_LE(e.pages, c.limits.table_pages);
    EXPECT_GE(int64_t{e.pages} * c.limits.page_tokens, c.limits.least_keys);
    EXPECT_TRUE(c.takes_run[static_cast<size_t>(e.run)]);
    EXPECT_LE(e.pages, last);
    last = e.pages;
  }
}

// Spans as passes make them: tiles of up to 64 tokens, gaps for tiles that do not run, several runs
// with documents, visible lengths that rise by stripes, by one or by jumps.
Case RandomCase(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Case c;
  c.limits.group = static_cast<int>(1 + below(9));
  c.limits.page_tokens = 16 << below(4);
  c.limits.table_pages = int64_t{1} << below(7);
  c.limits.least_keys = 1 + below(3) * 100;
  const int64_t runs = 1 + below(3);
  for (int64_t run = 0; run < runs; ++run) {
    c.takes_run.push_back(below(5) > 0);
    int64_t seen = below(400), begin = below(2) == 0 ? 0 : below(seen + 1);
    for (int64_t tile = below(8); tile >= 0; --tile) {
      if (below(6) == 0) begin = std::min(seen, begin + below(200));
      if (below(6) == 0) c.visible.resize(c.visible.size() + static_cast<size_t>(below(20)), -1);
      const auto token = static_cast<int64_t>(c.visible.size());
      const int64_t tokens = 1 + below(64), step = below(3), jump = below(3) == 0 ? below(600) : 0;
      seen += jump;
      for (int64_t t = 0; t < tokens; ++t) c.visible.push_back(seen += step == 2 ? below(9) : step);
      c.spans.push_back({.token = token,
                         .tokens = tokens,
                         .run = static_cast<int32_t>(run),
                         .bit = static_cast<int32_t>(10 + run),
                         .visible = seen,
                         .begin = begin});
    }
  }
  std::shuffle(c.spans.begin(), c.spans.end(), random);
  return c;
}

TEST(SplitAttention, EveryKeyIsSeenOnceWhateverTheBatch) {
  int64_t entries = 0, before = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Case c = RandomCase(seed);
    const AttentionSplit split = SplitOf(c);
    ExpectWithinLimits(c, split);
    Coverage coverage(c);
    coverage.Add(split);
    coverage.Expect();
    if (HasFailure()) return;
    entries += static_cast<int64_t>(split.entries.size());
    before += static_cast<int64_t>(split.before.size());
  }
  EXPECT_GT(entries, 500);
  EXPECT_GT(before, 100);
}

// A stripe that sees all of another rank's keys up to some point, in full pages: nothing is left.
TEST(SplitAttention, ALevelStripeGoesWhole) {
  const Case c = {.spans = {{.token = 0, .tokens = 64, .run = 0, .bit = 3, .visible = 640},
                            {.token = 64, .tokens = 64, .run = 0, .bit = 3, .visible = 640}},
                  .visible = std::vector<int64_t>(128, 640),
                  .takes_run = {true},
                  .limits = {.group = 2, .page_tokens = 64, .table_pages = 100, .least_keys = 256}};
  const AttentionSplit split = SplitOf(c);
  ASSERT_EQ(split.entries.size(), 1u);
  EXPECT_EQ(split.entries[0].tokens, 128);
  EXPECT_EQ(split.entries[0].pages, 10);
  EXPECT_THAT(split.before, IsEmpty());
  EXPECT_THAT(split.rest, IsEmpty());
}

// The stripe on the diagonal: whole pages that all rows see, the triangle for the kernels.
TEST(SplitAttention, OfTheDiagonalStripeTheTriangleIsLeft) {
  Case c = {.spans = {{.token = 0, .tokens = 64, .run = 0, .bit = 0, .visible = 1064}},
            .visible = {},
            .takes_run = {true},
            .limits = {.group = 4, .page_tokens = 16, .table_pages = 1000, .least_keys = 512}};
  for (int64_t t = 1; t <= 64; ++t) c.visible.push_back(1000 + t);
  const AttentionSplit split = SplitOf(c);
  ASSERT_EQ(split.entries.size(), 1u);
  EXPECT_EQ(split.entries[0].pages, 62);  // 992 of the 1001 keys that the first row sees
  ASSERT_EQ(split.rest.size(), 1u);
  EXPECT_EQ(split.rest[0].begin, 992);
  EXPECT_THAT(split.before, IsEmpty());
}

TEST(SplitAttention, ADocumentBeginsWithinAPage) {
  const Case c = {
      .spans = {{.token = 0, .tokens = 8, .run = 0, .bit = 0, .visible = 700, .begin = 33}},
      .visible = std::vector<int64_t>(8, 700),
      .takes_run = {true},
      .limits = {.group = 1, .page_tokens = 32, .table_pages = 1000, .least_keys = 512}};
  const AttentionSplit split = SplitOf(c);
  ASSERT_EQ(split.entries.size(), 1u);
  EXPECT_EQ(split.entries[0].first_page, 2);
  EXPECT_EQ(split.entries[0].pages, 19);
  ASSERT_EQ(split.before.size(), 1u);
  EXPECT_EQ(split.before[0].begin, 33);
  EXPECT_EQ(split.before[0].visible, 64);
  ASSERT_EQ(split.rest.size(), 1u);
  EXPECT_EQ(split.rest[0].begin, 672);
}

TEST(SplitAttention, WhatDoesNotFitIsTheKernels) {
  const Case fits = {
      .spans = {{.token = 0, .tokens = 8, .run = 0, .bit = 0, .visible = 512}},
      .visible = std::vector<int64_t>(8, 512),
      .takes_run = {true},
      .limits = {.group = 1, .page_tokens = 32, .table_pages = 99, .least_keys = 512}};
  EXPECT_EQ(SplitOf(fits).entries.size(), 1u);
  Case few = fits;
  few.limits.least_keys = 513;
  Case far = fits;
  far.takes_run = {false};
  Case wide = fits;
  wide.limits.group = gpu::kFusedRows + 1;
  for (const Case& c : {few, far, wide}) {
    const AttentionSplit split = SplitOf(c);
    EXPECT_THAT(split.entries, IsEmpty());
    ASSERT_EQ(split.rest.size(), 1u);
    EXPECT_EQ(split.rest[0].begin, 0);
    EXPECT_EQ(split.rest[0].tokens, 8);
  }
  // A table that is too short for a run: the kernels do the rest of the keys.
  Case longer = fits;
  longer.limits = {.group = 1, .page_tokens = 32, .table_pages = 10, .least_keys = 64};
  const AttentionSplit split = SplitOf(longer);
  ASSERT_EQ(split.rest.size(), 1u);
  EXPECT_EQ(split.rest[0].begin, 320);
}

// Rows that follow each other and see very different numbers of keys are not put together.
TEST(SplitAttention, ATallStepIsCut) {
  const Case c = {.spans = {{.token = 0, .tokens = 2, .run = 0, .bit = 0, .visible = 600},
                            {.token = 2, .tokens = 2, .run = 0, .bit = 0, .visible = 9600}},
                  .visible = {600, 600, 9600, 9600},
                  .takes_run = {true},
                  .limits = {.group = 1, .page_tokens = 16, .table_pages = 999, .least_keys = 512}};
  const AttentionSplit split = SplitOf(c);
  ASSERT_EQ(split.entries.size(), 2u);
  EXPECT_EQ(split.entries[0].token, 2);
  EXPECT_EQ(split.entries[0].pages, 600);
  EXPECT_EQ(split.entries[1].pages, 37);
}

TEST(FillUpEntries, WholeCallsOfEntriesThatExist) {
  std::vector<FusedEntry> entries(
      5, {.token = 7, .tokens = 3, .run = 2, .first_page = 4, .pages = 9, .bit = 1});
  FillUpEntries(entries, 4);
  ASSERT_EQ(entries.size(), 8u);
  EXPECT_EQ(entries[7].tokens, 0);
  EXPECT_EQ(entries[7].run, 2);
  EXPECT_EQ(entries[7].first_page, 4);
  EXPECT_EQ(entries[7].pages, 1);
  FillUpEntries(entries, 4);
  EXPECT_EQ(entries.size(), 8u);
}

TEST(FusedEntriesOf, FillsTheDeviceWithinBounds) {
  EXPECT_EQ(FusedEntriesOf(1), 32);
  EXPECT_EQ(FusedEntriesOf(8), 32);
  EXPECT_EQ(FusedEntriesOf(12), 16);
  EXPECT_EQ(FusedEntriesOf(32), 8);
  EXPECT_EQ(FusedEntriesOf(1000), 4);
}

}  // namespace
}  // namespace ringfill
