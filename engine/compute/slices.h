// How a rank's share of a dimension is cut in replicated-token mode.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ringfill {

struct Slice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Rank r's part of n elements cut on multiples of `block`: blocks [r*B/N, (r+1)*B/N), rounded down,
// B = n / block. REQUIRES: n is a multiple of block.
inline Slice SliceOf(int64_t n, int64_t block, int rank, int ranks) {
  const int64_t blocks = n / block;
  return {blocks * rank / ranks * block, blocks * (rank + 1) / ranks * block};
}

// The largest slice that any rank gets.
inline int64_t LargestSlice(int64_t n, int64_t block, int ranks) {
  return (n / block + ranks - 1) / ranks * block;
}

}  // namespace ringfill
