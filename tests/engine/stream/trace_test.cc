#include "engine/stream/trace.h"

#include <set>
#include <string_view>
#include <thread>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

TEST(TraceBufferTest, HoldsNothingWhileOff) {
  TraceBuffer trace;
  trace.Add({});
  EXPECT_TRUE(trace.Take().empty());
  EXPECT_EQ(trace.dropped(), 0);
}

TEST(TraceBufferTest, IsBoundedAndCountsWhatItDrops) {
  TraceBuffer trace(3);
  trace.Enable(true);
  for (int i = 0; i < 5; ++i) trace.Add({.label = {.layer = i}, .begin = {}, .end = {}});
  const std::vector<TraceSpan> spans = trace.Take();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[2].label.layer, 2);
  EXPECT_EQ(trace.dropped(), 2);
  // Taken means room again.
  trace.Add({});
  EXPECT_EQ(trace.Take().size(), 1u);
  EXPECT_EQ(trace.dropped(), 2);
}

TEST(TraceBufferTest, TwoLanesMayAddAtOnce) {
  TraceBuffer trace;
  trace.Enable(true);
  const auto fill = [&] {
    for (int i = 0; i < 1000; ++i) trace.Add({});
  };
  std::thread other(fill);
  fill();
  other.join();
  EXPECT_EQ(trace.Take().size(), 2000u);
}

TEST(OpLabelTest, NamesAreDistinct) {
  std::set<std::string_view> kinds, strategies;
  for (int k = 0; k < kOpKinds; ++k) kinds.insert(OpKindName(static_cast<OpKind>(k)));
  for (int s = 0; s < kRingStrategies; ++s) {
    strategies.insert(RingStrategyName(static_cast<RingStrategy>(s)));
  }
  EXPECT_EQ(kinds.size(), static_cast<size_t>(kOpKinds));
  EXPECT_EQ(strategies.size(), static_cast<size_t>(kRingStrategies));
  EXPECT_EQ(OpKindName(OpKind::kAllGather), "all-gather");
  EXPECT_EQ(RingStrategyName(RingStrategy::kOrdered), "ordered");
}

}  // namespace
}  // namespace ringfill
