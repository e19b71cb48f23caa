// The blockwise driver of the vector kernels: cuts a tile into groups of rows and its keys into
// passes that stay in the second-level cache.
#pragma once

#include <memory>
#include <string_view>

#include "engine/compute/attention/attention.h"
#include "engine/compute/attention/group_pass.h"

namespace ringfill {

enum class QueryPacking {
  kFloat,       // float queries, or bf16 ones widened
  kBf16InPairs  // bf16 queries, two head dimensions to a word
};

struct TiledOptions {
  KvBlockShape shape;  // head_dim a multiple of 16
  GroupKernel kernel;
  QueryPacking packing;
  std::string_view name;  // a literal
  // May be null. For bf16 blocks: a kernel for float blocks that is faster than `kernel` and gives
  // the same bits. Tiles of many rows then widen each pass once and use it.
  GroupKernel widened = nullptr;
};

std::unique_ptr<AttentionKernel> MakeTiledAttention(const TiledOptions& options);

}  // namespace ringfill
