#include "engine/worker/step_result.h"

#include <span>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

TEST(ValueFaultTest, PlacesAreNamed) {
  EXPECT_EQ(DescribePlace({0, 3, 1}), "layer 3, ring round 1");
  EXPECT_EQ(DescribePlace({0, 3, ValueFault::kProducts}), "layer 3, the products");
  EXPECT_EQ(DescribePlace({0, 0, ValueFault::kTokenAttention}), "layer 0, attention");
  EXPECT_EQ(DescribePlace({0, 0, ValueFault::kTokenFfn}), "layer 0, the feed-forward part");
}

// In the order in which a step comes to them.
TEST(ValueFaultTest, TheFirstPlaceIsTheEarliest) {
  const ValueFault sharded[] = {{0, 1, 0}, {0, 1, 2}, {0, 1, ValueFault::kProducts}, {0, 2, 0}};
  const ValueFault replicated[] = {{0, 1, ValueFault::kTokenQkv},
                                   {0, 1, ValueFault::kTokenAttention},
                                   {0, 1, ValueFault::kTokenOutput},
                                   {0, 1, ValueFault::kTokenFfn},
                                   {0, 2, ValueFault::kTokenQkv}};
  for (const std::span<const ValueFault> places :
       {std::span<const ValueFault>(sharded), std::span<const ValueFault>(replicated)}) {
    for (size_t a = 0; a < places.size(); ++a) {
      for (size_t b = 0; b < places.size(); ++b) {
        EXPECT_EQ(IsEarlier(places[a], places[b]), a < b) << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
