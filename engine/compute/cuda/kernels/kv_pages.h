// Moving KV that is there already: pages into a shard, rows of an inbox into pages, and overwriting
// freed pages. Plain copies of 16 bytes at a time.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// shard page i = bytes [layer_offset, layer_offset + layer_bytes) of pool page pages[i]. Offsets
// and sizes are multiples of 16. shard: [count][layer_bytes]
struct CopyPagesArgs {
  const std::byte* pool;
  int64_t page_stride;
  int64_t layer_offset;
  int64_t layer_bytes;
  const uint32_t* pages;  // [count]
  int64_t count;
  std::byte* shard;
};
[[nodiscard]] int CopyPages(const CopyPagesArgs& args, KernelStream stream);

// kv rows [k|v][kv_heads][head_dim] of 16-bit elements to their pages. Row r of `inbox` goes to
// targets[r]; its outbox_slot is not looked at. head_dim is a multiple of 8.
struct StoreRowsArgs {
  const std::byte* inbox;
  const KvTarget* targets;  // [rows]
  int64_t rows;
  int kv_heads;
  int head_dim;
  KvPages pages;
};
[[nodiscard]] int StoreRows(const StoreRowsArgs& args, KernelStream stream);

// Fills whole pages with 0xff, a NaN in every type. page_stride is a multiple of 16.
[[nodiscard]] int PoisonPages(std::byte* pool, int64_t page_stride, const uint32_t* pages,
                              int64_t count, KernelStream stream);

}  // namespace ringfill::gpu
