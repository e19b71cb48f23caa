// Where the K and V block of a page of a run lie, and how far a tile looks into the run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/attention/attention.h"

namespace ringfill {

// The start of page `i` of the run; 64-bit throughout.
inline const std::byte* KvPage(const KvBlocks& kv, int64_t i) {
  const size_t page = kv.page_index != nullptr ? kv.page_index[i] : static_cast<size_t>(i);
  return kv.base + page * kv.page_stride_bytes;
}

// The longest visible prefix of any token of the tile.
inline int64_t MaxVisible(const AttentionTile& tile) {
  return tile.tokens > 0 ? tile.visible[tile.tokens - 1] : 0;
}

}  // namespace ringfill
