// Types that the kernels' headers share. No CUDA header is included, so that plain C++ can call the
// launch wrappers.
//
// All pointers of the wrappers' arguments are device memory unless they say otherwise. A wrapper
// returns when the work is queued on the stream; zero rows queue nothing. What it reads and writes
// belongs to the device until an event recorded behind it is done. It gives the runtime's
// cudaError_t of the launch, 0 for none.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace ringfill::gpu {

// The runtime's cudaStream_t.
using KernelStream = CUstream_st*;

// Types that activations and KV are stored in.
enum class Element { kF32, kBF16, kF16 };

constexpr size_t ElementBytes(Element type) { return type == Element::kF32 ? 4 : 2; }

// Where a row's K and V go. Device arrays of these are made on the host, one a row.
struct KvTarget {
  static constexpr uint32_t kNoPage = 0xffffffffu;
  uint32_t page = kNoPage;    // page id; kNoPage: not to a page
  int32_t token_in_page = 0;  // REQUIRES: < page_tokens
  int64_t outbox_slot = -1;   // kv row of the outbox; -1: not to the outbox
};

// The KV blocks of one layer in a pool of pages or in a shard: page p lies at base + p *
// page_stride, its K blocks [kv_heads][page_tokens][head_dim] at + k_offset, its V blocks at
// + v_offset, all contiguous, in the KV type. All offsets are bytes, multiples of 16.
struct KvPages {
  std::byte* base;
  int64_t page_stride;
  int64_t k_offset;
  int64_t v_offset;
  int page_tokens;  // a multiple of 16
};

}  // namespace ringfill::gpu
