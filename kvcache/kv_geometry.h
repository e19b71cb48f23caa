// The shape of one KV page: page_tokens tokens of all layers, one contiguous block
//   [layer][k|v][kv_head][block_bytes]
// What lies inside a block is the backend's business (its named block layout).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringfill {

struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;
  int page_tokens = 0;
  size_t block_bytes = 0;  // one (layer, k|v, head) block

  size_t LayerBytes() const { return 2 * static_cast<size_t>(kv_heads) * block_bytes; }
  size_t PageBytes() const { return static_cast<size_t>(layers) * LayerBytes(); }
  // Byte offsets inside a page. The K blocks of all heads of a layer come first, then the V blocks.
  size_t LayerOffset(int layer) const { return static_cast<size_t>(layer) * LayerBytes(); }
  size_t KOffset(int layer, int head) const {
    return LayerOffset(layer) + static_cast<size_t>(head) * block_bytes;
  }
  size_t VOffset(int layer, int head) const {
    return LayerOffset(layer) + static_cast<size_t>(kv_heads + head) * block_bytes;
  }
};

// Tokens of the whole pages that hold tokens [begin, end) of a sequence on a rank.
inline int64_t KeysInPages(int64_t begin, int64_t end, int64_t page_tokens) {
  if (end <= begin) return 0;
  return ((end + page_tokens - 1) / page_tokens - begin / page_tokens) * page_tokens;
}

}  // namespace ringfill
