#include "engine/compute/slices.h"

#include "gtest/gtest.h"

namespace ringfill {
namespace {

TEST(SlicesTest, SlicesTileTheDimensionOnBlockBounds) {
  for (int64_t block : {1, 32, 256}) {
    for (int64_t blocks : {1, 2, 3, 7, 48}) {
      const int64_t n = block * blocks;
      for (int ranks = 1; ranks <= 9; ++ranks) {
        int64_t next = 0;
        for (int r = 0; r < ranks; ++r) {
          const Slice slice = SliceOf(n, block, r, ranks);
          EXPECT_EQ(slice.begin, next);
          EXPECT_EQ(slice.begin % block, 0);
          EXPECT_LE(slice.size(), LargestSlice(n, block, ranks));
          EXPECT_GE(slice.size(), n / block / ranks * block);
          next = slice.end;
        }
        EXPECT_EQ(next, n);
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
