// Blockwise attention of a tile of query rows over the paged KV of one KV head, with float32 online
// softmax. Kernels take raw pointers and extents; they know no request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/compute/attention/kv_layout.h"
#include "engine/compute/attention/softmax_state.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"

namespace ringfill {

// One layer, one KV head, of a run of pages: page i of the run lies at
//   base + (page_index ? page_index[i] : i) * page_stride_bytes
// with the head's K block at + k_offset_bytes and its V block at + v_offset_bytes. All offsets are
// 64-bit. Block order: kv_layout.h. A page pool and a received ring buffer both look like this.
struct KvBlocks {
  const std::byte* base;
  const uint32_t* page_index;
  size_t page_stride_bytes;
  size_t k_offset_bytes;
  size_t v_offset_bytes;
};

// A tile: `tokens` query tokens times the `group` query heads that share this KV head. Row order is
// token-major: row = token * group + head_in_group; rows = tokens * group.
struct AttentionTile {
  // [rows, head_dim] contiguous, in the KV type (float or Bf16), already scaled by
  // log2(e) / sqrt(head_dim), see PackQueries.
  const void* q;
  int tokens;
  int group;
  KvBlocks kv;
  // [tokens] visible KV prefix length of each query token, in tokens of this run of pages,
  // non-decreasing, >= 0. Keys at or past it are masked; blocks that no token sees are not
  // computed.
  const int64_t* visible;
  // In and out: the tile's states, merged with what is seen here. Rows as above.
  SoftmaxRows state;
  // The first key of the run that the tile's tokens see: [begin, visible) each, nothing where
  // visible <= begin. Blocks before it are not computed.
  int64_t begin = 0;
};

// The (row, key) products that a tile costs when every token computes exactly the pages of which it
// sees at least one key: what "masked blocks cost nothing" allows.
int64_t AttentionWork(const AttentionTile& tile, int page_tokens);

// Attending to a run in one call or in several, cut at multiples of this many tokens and in order,
// gives equal bits (where pages divide it).
inline constexpr int kExactCutTokens = 1024;

// Immutable after construction, safe to share between threads; each thread brings its own scratch.
// A row's bits depend on its query, its state and the keys that it sees, not on the rows beside it,
// the size of the tile, or where the pages lie.
class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  // Scratch that Run needs for tiles of up to `rows` rows; 64-byte aligned memory.
  virtual size_t ScratchBytes(int rows) const = 0;
  virtual void Run(const AttentionTile& tile, std::byte* scratch) const = 0;
  // "reference", "avx2 f32", "avx512 bf16", ...; for logs.
  virtual std::string_view name() const = 0;
};

// The kernel for `shape` on `isa` (falls back to the next lower set where a set has none for this
// shape). The bf16 KV type runs on every set: widened to float32 products below kAvx512Bf16.
std::unique_ptr<AttentionKernel> MakeAttentionKernel(const KvBlockShape& shape, CpuIsa isa);

// The plain reference: double loop, no tiling, softmax in two passes in double; for tests.
std::unique_ptr<AttentionKernel> MakeReferenceAttention(const KvBlockShape& shape);

// q_out[i] = q[i] * log2(e)/sqrt(head_dim) in `type`, n values (a multiple of head_dim).
void PackQueries(DType type, int head_dim, const float* q, size_t n, void* q_out);

}  // namespace ringfill
