// The seam between the blockwise driver (tiled_attention.cc) and the vector kernels: a few query
// rows against a few hundred keys. Only plain types, because the kernels' files are compiled for
// instruction sets that the rest of the program may not use.
//
// All K and V blocks are walked in 32-bit words: a float, or a bf16 pair. A slice is 16 consecutive
// tokens of one page; its K words [word, 16] lie page_tokens words apart, its V words
// [token or token pair, head_dim] head_dim words apart, whatever the type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/attention/softmax_state.h"

namespace ringfill {

inline constexpr int kSliceTokens = 16;
inline constexpr int kMaxGroupRows = 6;
inline constexpr int kMaxPassTokens = 1024;
// Floats from one row of scores to the next; not a power of two, so that rows do not share cache
// sets.
inline constexpr int kScoreStride = kMaxPassTokens + 2 * kSliceTokens;

// The keys of one pass, at most kMaxPassTokens.
struct KvPass {
  const std::byte* const* k;  // [slices] word 0 of the slice's first token
  const std::byte* const* v;  // [slices]
  int head_dim;
  int page_tokens;
};

// Up to kMaxGroupRows query rows. `keys` = seen[rows - 1] > skip; tokens at or past it, and the
// first `skip`, hold anything, also NaN.
struct RowGroup {
  int rows;
  int keys;
  int skip;         // tokens of the first slice that no row sees; below kSliceTokens
  const int* seen;  // [rows] the end of what each row sees of this pass, non-decreasing
  // float [head_dim, rows], or for kernels that take bf16 pairs uint32_t [head_dim / 2, rows].
  const void* q;
  SoftmaxRows state;  // of the first row; rows lie side by side
  float* scores;      // scratch [rows, kScoreStride], 64-byte aligned
};

// Merges the keys of `pass` into the states of `group`.
using GroupKernel = void (*)(const KvPass& pass, const RowGroup& group);

// Kernels compiled into this build; null where the compiler's target has none. The caller sees to
// it that the machine has the instruction set. head_dim: a multiple of 16.
struct GroupKernels {
  GroupKernel f32;   // float blocks, float queries
  GroupKernel bf16;  // bf16 blocks widened to float, float queries
};
GroupKernels Avx2GroupKernels();
GroupKernels Avx512GroupKernels();

// bf16 blocks and queries, products by the AVX-512 bf16 dot instruction; null where not built.
GroupKernel Avx512Bf16GroupKernel();

}  // namespace ringfill
