// From projected rows to queries ready for attention and K/V in their pages: rotary embedding,
// packing, append.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// angles[r] = (cos, sin) pairs of position[r] * frequency[i], computed in double. frequency:
// [rope_dims / 2] radians a position; angles: [rows][rope_dims] floats.
[[nodiscard]] int RopeAngles(const int64_t* position, int64_t rows, const double* frequency,
                             int rope_dims, float* angles, KernelStream stream);

struct RotateAndStoreArgs {
  // Rows of floats, q_stride and kv_stride apart: q [heads][head_dim], k and v
  // [kv_heads][head_dim]. They may be parts of one buffer.
  const float* q;
  const float* k;
  const float* v;
  int64_t q_stride;
  int64_t kv_stride;
  const float* angles;  // [rows][rope_dims]
  int64_t rows;
  int64_t first_row;  // where these rows lie in packed_q
  int64_t all_rows;   // the extent of packed_q in rows
  int kv_heads;
  int group;
  int head_dim;   // a multiple of 2
  int rope_dims;  // leading dimensions that turn, even, <= head_dim
  Element type;   // of what is written
  // [kv_heads][all_rows * group][head_dim], scaled by log2(e) / sqrt(head_dim); may be null.
  void* packed_q;
  const KvTarget* targets;  // [rows]; may be null: K and V go nowhere
  KvPages pages;            // blocks [page_tokens][head_dim]
  std::byte* outbox;        // kv rows [k|v][kv_heads][head_dim]; null when no target has a slot
};
// Turns q and k of each row on interleaved pairs (2i, 2i+1), writes q packed, k and v to the row's
// page and kv row. Source: Su et al., "RoFormer" (2021).
[[nodiscard]] int RotateAndStore(const RotateAndStoreArgs& args, KernelStream stream);

}  // namespace ringfill::gpu
