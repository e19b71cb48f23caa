// Attention to whole pages by a library: the fast path of prefill attention. The kernels of
// kernels/attention.h are its reference and do all that does not fit here (fused_work.h).
//
// A call takes a batch of entries. Entry e is up to kFusedRows query rows of each KV head, the
// heads of a group beside each other as rows, which all see keys [0, keys[e]) of the pages in the
// entry's row of a page table. So nothing is masked but by length. The caller merges what comes out
// into softmax states.
//
// An implementation is a file chosen by CMake: cudnn_attention.cc or no_cudnn_attention.cc, in
// tests tests/engine/compute/cuda/emulated_fused.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/compute/cuda/kernels/fused_rows.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill {

// What all calls have in common.
struct FusedAttentionOptions {
  int head_dim = 0;
  int kv_heads = 0;
  int page_tokens = 0;
  int entries = 0;                         // of every call
  int64_t table_pages = 0;                 // a row of the page tables
  int64_t page_limit = 0;                  // pages in the tables are below it
  std::vector<int64_t> page_strides = {};  // that KvPages of a call may have, bytes
};

struct FusedCall {
  const void* q;         // [entries][kv_heads][kFusedRows][head_dim] bf16, scaled as in attention.h
  const int32_t* rows;   // [entries] that q has, 1 to kFusedRows; the others are not looked at
  const int32_t* keys;   // [entries] 1 to table_pages * page_tokens
  const int32_t* pages;  // [entries][table_pages] as FillFusedTables leaves them
  gpu::KvPages kv;
  void* out;           // [entries][kv_heads][kFusedRows][head_dim] bf16, normalised
  float* log_sum_exp;  // [entries][kv_heads][kFusedRows] natural units
  std::byte* workspace;
};

// Of one device; used by its host thread. All addresses are aligned to 16 bytes, the workspace to
// 256.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // What it is, for the log.
  virtual std::string name() const = 0;
  // Fewer keys than these are done as fast without it.
  virtual int64_t least_keys() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Queues a call. REQUIRES: the device is current.
  virtual absl::Status Run(const FusedCall& call, cudaStream_t stream) = 0;
};

// Tries out whether the library takes calls like these on the device, which costs a second or two.
// UNIMPLEMENTED saying why when it does not.
absl::StatusOr<std::unique_ptr<FusedAttention>> MakeFusedAttention(
    int device, const FusedAttentionOptions& options);

}  // namespace ringfill
