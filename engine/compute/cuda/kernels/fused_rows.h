// Rows of an Attend on their way through an attention of whole pages (fused_attention.h) and back:
// queries and page tables of a batch of entries in, outputs and log-sum-exps merged into states.
#pragma once

#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

// Query rows of an entry under one KV head, at most.
inline constexpr int kFusedRows = 256;
// Attention may look at whole tiles of so many keys: page tables name pages that exist up to there.
inline constexpr int kFusedTileKeys = 256;

// Query tokens [token, token + tokens) that all see pages [first_page, first_page + pages) of a run
// whole. tokens * group is at most kFusedRows. An entry without tokens fills a batch.
struct FusedEntry {
  int64_t token;
  int32_t tokens;
  int32_t run;
  int64_t first_page;
  int32_t pages;  // from 1 on
  int32_t bit;    // see PrefillWork
};

struct FusedRowsArgs {
  AttentionArgs attention;  // bf16; visible, begin and clear are not looked at
  const FusedEntry* entries;
  int count;
  int64_t table_pages;  // a row of page_table has room for so many; at least any entry's pages
};

// q of the entries' rows to q_out [count][kv_heads][kFusedRows][head_dim]; what an entry does not
// have is left as it is.
[[nodiscard]] int GatherFusedQueries(const FusedRowsArgs& args, void* q_out, KernelStream stream);

// The pages of each entry, counted from KvPages::base in page strides, to pages_out
// [count][table_pages]; the last one again and again up to a multiple of kFusedTileKeys. Offsets of
// the runs are multiples of the page stride.
[[nodiscard]] int FillFusedTables(const FusedRowsArgs& args, int32_t* pages_out,
                                  KernelStream stream);

// Merges what the entries' rows saw into their states. out [count][kv_heads][kFusedRows][head_dim]
// bf16, log_sum_exp [count][kv_heads][kFusedRows] in natural units. Bit FusedEntry::bit of
// `nonfinite`, which may be null, is set when a state is not finite then.
[[nodiscard]] int MergeFused(const FusedRowsArgs& args, const void* out, const float* log_sum_exp,
                             unsigned long long* nonfinite, KernelStream stream);

}  // namespace ringfill::gpu
