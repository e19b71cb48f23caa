// Which part of a prefill Attend goes through FusedAttention, and in what entries. Plain values in
// and out; no CUDA.
//
// The rows of a step see a staircase of keys. What some neighbouring rows all see, cut to whole
// pages, is a rectangle without a mask: an entry. What is left of their keys, before its first page
// (a document begins within a page) and behind its last (a page that is not full, and the steps of
// the staircase), is the kernels'. Whole pages, because a library may multiply what lies in a page
// behind the last key by zero, and poison or another prompt's NaN does not vanish so.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/kernels/fused_rows.h"

namespace ringfill {

struct FusedLimits {
  int group = 1;
  int page_tokens = 0;
  int64_t table_pages = 0;  // of an entry, at most
  int64_t least_keys = 0;   // of an entry
};

struct AttentionSplit {
  std::vector<gpu::FusedEntry> entries;  // those that see most first
  // What the kernels do. `before` rows see [begin, visible) as the span says; `rest` rows from
  // begin to what each of them sees. A row lies in one span of each at most.
  std::vector<gpu::TokenSpan> before, rest;
};

// visible: of each row of the batch that the spans count in. takes_run[r]: run r may be in entries.
AttentionSplit SplitAttention(const std::vector<gpu::TokenSpan>& spans,
                              const std::vector<int64_t>& visible,
                              const std::vector<bool>& takes_run, const FusedLimits& limits);

// Tokens of an entry see numbers of keys that differ by this at most, so that little is left.
inline constexpr int64_t kMostStep = 256;

// How many entries a call has: enough for any GPU's processors with so many KV heads, since what a
// call takes is the same however few are filled.
int FusedEntriesOf(int kv_heads);
// The number of entries rounded up to whole calls; those without tokens look at entry 0's page.
void FillUpEntries(std::vector<gpu::FusedEntry>& entries, int of_a_call);

}  // namespace ringfill
