// Attention over pages, prefill and decode, into softmax states that carry what was seen before.
//
// Queries are rows: q [kv_heads][tokens * group][head_dim], token-major (row = token * group + head
// in group), already scaled by log2(e) / sqrt(head_dim). States as in softmax_state.h, one a row:
// max and sum [kv_heads][tokens * group], acc [kv_heads][tokens * group][head_dim], float32, max in
// base-2 units. Element type of q, K and V: bf16 or f16; products with float32 accumulation,
// probabilities rounded to the element type.
//
// K and V blocks are [page_tokens][head_dim], row-major (KvPages). Head sizes: 64, 80, 96, 128,
// 256; any group. A row's bits depend on its query, its state and the keys that it sees alone.
// Attending to a run in one call of AttendPrefill or in several, cut at multiples of kPrefillKeys
// and in order, gives equal bits.
//
// Sources: Dao, "FlashAttention-2" (2023); split decode after Dao et al., "Flash-Decoding" (2023).
#pragma once

#include "engine/compute/cuda/kernels/softmax.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

inline constexpr int kPrefillRows = 64;  // query rows of a prefill work item
inline constexpr int kDecodeRows = 16;   // query rows of a decode work item
// Keys that are looked at together (head size 256: 32, which divides it).
inline constexpr int kPrefillKeys = 64;

constexpr bool AttentionTakesHeadDim(int head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}

// Bytes from row to row of a tile in shared memory, and the dynamic shared memory of a block.
constexpr int TileStride(int head_dim) { return head_dim * 2 + 16; }
constexpr int PrefillSharedBytes(int head_dim) {
  const int keys = head_dim <= 128 ? kPrefillKeys : kPrefillKeys / 2;
  return (4 * keys + (head_dim <= 128 ? 0 : kPrefillRows)) * TileStride(head_dim);
}
constexpr int DecodeSharedBytes(int head_dim) {
  const int keys = head_dim <= 128 ? 64 : 32;
  return (4 * keys + (head_dim <= 128 ? 0 : kDecodeRows)) * TileStride(head_dim);
}

// The KV of one prompt on one rank: logical page i is page table[first_page + i] of the pool or
// shard, or page i itself where first_page is kConsecutive.
struct KvRunView {
  static constexpr int64_t kConsecutive = -1;
  int64_t first_page = kConsecutive;
  int64_t offset = 0;  // bytes from KvPages::base, a multiple of 16
};

// Query rows [row, row + rows) of every KV head, all of one run. Items without rows are skipped.
struct PrefillWork {
  int64_t row;   // counted in tokens * group
  int32_t rows;  // at most kPrefillRows
  int32_t run;
  int32_t bit;  // of the mask of what is not finite; 0 to 63
};

// The same, looking at keys [first_key, end_key) of what the rows see. The item's state goes to
// partial state `part` (counted in kDecodeRows rows of every head), or when that is -1 into the
// rows' own state.
struct DecodeWork {
  int64_t row;
  int32_t rows;  // at most kDecodeRows
  int32_t run;
  int64_t first_key;  // a multiple of 16
  int64_t end_key;
  int32_t part;
};

// Rows whose partial states [first_part, first_part + parts) merge, in this order.
struct MergeWork {
  int64_t row;
  int32_t rows;  // at most kDecodeRows
  int32_t first_part;
  int32_t parts;
};

struct AttentionArgs {
  Element type;
  int head_dim;
  int kv_heads;
  int group;       // query heads a KV head
  int64_t tokens;  // extent of q and state
  const void* q;
  SoftmaxArrays state;  // in and out
  bool clear;           // the rows worked on start empty
  KvPages kv;
  const uint32_t* page_table;  // may be null when all runs are consecutive
  const KvRunView* runs;
  // [tokens] The token sees keys [begin, visible) of its run; fewer than 2^31. Neither falls within
  // a work item. begin may be null: 0.
  const int64_t* visible;
  const int64_t* begin;
};

struct PrefillArgs {
  AttentionArgs attention;
  const PrefillWork* work;  // [works]; start with those that see most
  int works;
  // Bit `bit` of a work item is set when one of its states is not finite. May be null.
  unsigned long long* nonfinite;
};
[[nodiscard]] int AttendPrefill(const PrefillArgs& args, KernelStream stream);

struct DecodeArgs {
  AttentionArgs attention;
  const DecodeWork* work;  // [works]
  int works;
  // [parts][kv_heads][kDecodeRows] states
  SoftmaxArrays parts;
  const MergeWork* merge;  // [merges]; may be null
  int merges;
};
// Partial states, then their merge. The counts of work items alone shape the launches, so that a
// captured graph serves every step whose items fit; what is not needed has no rows.
[[nodiscard]] int AttendDecode(const DecodeArgs& args, KernelStream stream);

}  // namespace ringfill::gpu
