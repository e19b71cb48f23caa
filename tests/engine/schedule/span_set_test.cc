#include "engine/schedule/span_set.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

std::set<int64_t> Positions(const SpanSet& set) {
  std::set<int64_t> positions;
  for (const Span& span : set.spans()) {
    for (int64_t p = span.begin; p < span.end; ++p) positions.insert(p);
  }
  return positions;
}

TEST(SpanSetTest, NeighboursBecomeOne) {
  SpanSet set;
  set.Add({10, 20});
  set.Add({30, 40});
  set.Add({20, 30});
  EXPECT_EQ(set.spans(), (std::vector<Span>{{10, 40}}));
  set.Remove({15, 16});
  EXPECT_EQ(set.spans(), (std::vector<Span>{{10, 15}, {16, 40}}));
  set.Add({5, 5});
  set.Remove({12, 12});
  EXPECT_EQ(set.size(), 29);
}

// Beside a set of positions, over 20,000 operations.
TEST(SpanSetTest, AgreesWithASetOfPositions) {
  std::mt19937 random(1);
  SpanSet set;
  std::set<int64_t> model;
  for (int op = 0; op < 20000; ++op) {
    const int64_t begin = random() % 60;
    const Span span = {begin, begin + static_cast<int64_t>(random() % 12)};
    const bool add = random() % 2 == 0;
    for (int64_t p = span.begin; p < span.end; ++p) {
      if (add) {
        model.insert(p);
      } else {
        model.erase(p);
      }
    }
    if (add) {
      set.Add(span);
    } else {
      set.Remove(span);
    }
    ASSERT_EQ(Positions(set), model);
    ASSERT_EQ(set.size(), static_cast<int64_t>(model.size()));
    ASSERT_EQ(set.empty(), model.empty());
    for (size_t i = 0; i < set.spans().size(); ++i) {
      ASSERT_GT(set.spans()[i].size(), 0);
      if (i > 0) {
        ASSERT_GT(set.spans()[i].begin, set.spans()[i - 1].end);
      }
    }
    const int64_t probe = random() % 70;
    const auto n = static_cast<size_t>(random() % 20);
    const std::set<int64_t> first = Positions(set.First(static_cast<int64_t>(n)));
    ASSERT_EQ(first.size(), std::min(n, model.size()));
    ASSERT_TRUE(std::equal(first.begin(), first.end(), model.begin()));
    ASSERT_EQ(set.SizeBelow(probe), std::distance(model.begin(), model.lower_bound(probe)));
    std::set<int64_t> within(model.lower_bound(span.begin), model.lower_bound(span.end));
    ASSERT_EQ(Positions(set.Within(span)), within);
  }
}

}  // namespace
}  // namespace ringfill
