// Softmax states on the device: emptying, merging and normalising them (softmax_state.h says what a
// state is; an empty one has sum 0 and merges as identity).
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// max and sum [rows], acc [rows][head_dim] floats.
struct SoftmaxArrays {
  float* max;
  float* sum;
  float* acc;
};

// Sets `rows` states to empty.
[[nodiscard]] int ClearStates(const SoftmaxArrays& state, int64_t rows, int head_dim,
                              KernelStream stream);

// Merges `rows` states into others.
[[nodiscard]] int MergeStates(const SoftmaxArrays& from, const SoftmaxArrays& into, int64_t rows,
                              int head_dim, KernelStream stream);

struct NormalizeArgs {
  // `parts` arrays of states, merged in this order; part p begins p * part_stride floats further
  // on in each.
  const float* max;  // [kv_heads][tokens * group]
  const float* sum;
  const float* acc;  // [kv_heads][tokens * group][head_dim]
  int parts;
  int64_t part_stride;
  int kv_heads;
  int group;
  int head_dim;
  int64_t tokens;
  Element out_type;
  void* out;  // [tokens][kv_heads * group * head_dim]; zeros where a state is empty
};
// acc / sum of the merged states, in the order that the output projection takes.
[[nodiscard]] int NormalizeStates(const NormalizeArgs& args, KernelStream stream);

}  // namespace ringfill::gpu
