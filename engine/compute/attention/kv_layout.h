// The element order inside one (page, layer, KV head) block of K or V: what kernels read, rings
// carry and files keep. It is part of the KV type.
//
//   f32   K [head_dim][page_tokens]          V [page_tokens][head_dim]
//   bf16  K [head_dim/2][page_tokens][2]     V [page_tokens/2][head_dim][2]
//
// K is transposed so that a vector's lanes are KV positions in the score product; the bf16 pairs
// are what the AVX-512 bf16 dot instruction consumes. page_tokens is a multiple of 16, head_dim
// of 2.
#pragma once

#include <cstddef>

#include "engine/compute/dtype.h"

namespace ringfill {

struct KvBlockShape {
  DType type;
  int head_dim;
  int page_tokens;

  // Bytes of one head's K block in one page; its V block is as large.
  size_t BlockBytes() const {
    return DTypeBytes(type) * static_cast<size_t>(head_dim) * static_cast<size_t>(page_tokens);
  }
};

// Stores `rows` consecutive tokens of one KV head, the first at `token_in_page` of the page.
// k, v: row i at k + i*stride (floats), [head_dim] each. k_block, v_block: the head's blocks.
// REQUIRES: token_in_page + rows <= page_tokens. Tokens already stored keep their bits, also the
// other half of a bf16 pair. Two threads must not store into the same page block at once.
void StoreKv(const KvBlockShape& shape, int token_in_page, int rows, const float* k, const float* v,
             ptrdiff_t stride, std::byte* k_block, std::byte* v_block);

// Reads back one token as floats, for tests and references. k, v: [head_dim], either may be null.
void LoadKv(const KvBlockShape& shape, int token_in_page, const std::byte* k_block,
            const std::byte* v_block, float* k, float* v);

}  // namespace ringfill
