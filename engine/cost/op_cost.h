// Seconds that single operations of a Device take on one rank, from its figures. Both sides use
// them: the virtual device of engine/sim with the exact counts of the batches that it is given, the
// cost model with counts of its own.
//
// Operations of attention are 4 * head_dim for each query row and visible key (two products of
// 2 * head_dim each), which is the 4 B^2 d of a square block; the bound "2 B^2 d" that circulates
// forgets one of them. Rows count every query head, keys every KV head: grouped-query attention
// shrinks the bytes of a shard and not the work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/cost/figures.h"
#include "engine/stream/round_header.h"

namespace ringfill {

class OpCost {
 public:
  OpCost(const ModelShape& shape, const DeviceFigures& figures);

  double overhead() const { return f_.op_overhead_s; }
  double Copy(double bytes) const { return f_.op_overhead_s + bytes / f_.copy_bytes_per_s; }
  double Embed(int64_t rows) const;
  // `finish_rows` through the second half of a layer, `project_rows` through the first half of the
  // next, both rounded up by tile (RoundRows); -1: that half does not run. Weights are made ready
  // whatever the rows.
  double Layers(int64_t finish_rows, int64_t project_rows) const;
  int64_t RoundRows(int64_t rows) const {
    return (rows + f_.product_row_granule - 1) / f_.product_row_granule * f_.product_row_granule;
  }

  // One query tile against one run of pages. token_keys: sum over its tokens of the keys each sees;
  // tile_keys: the keys that its last token sees; all rounded up to whole pages. Without overhead.
  double AttendTile(double token_keys, double tile_keys) const {
    return static_cast<double>(shape_.kv_heads) *
           (per_key_ * tile_keys + per_row_key_ * static_cast<double>(shape_.group()) * token_keys);
  }

  // Rows of the output head for `rows` states at once.
  double Score(int64_t rows) const;

  // Replicated tokens. token_keys and tile_keys as above, over all tiles of this rank: consecutive
  // tokens of one run make tiles of up to token_tile() tokens.
  int64_t token_tile() const { return std::max<int64_t>(1, f_.large_tile.rows / shape_.group()); }
  double TokenQkv(int64_t tokens, int ranks) const;
  double TokenAttend(int64_t tokens, double token_keys, double tile_keys) const;
  double TokenOutput(int64_t tokens, int ranks) const;
  double TokenFfn(int64_t tokens, int ranks) const;
  double TokenEnd(int64_t tokens, int ranks) const;
  double Logits(int64_t rows, int64_t vocab_rows) const;

 private:
  // `weights` in their stored type times `tokens`.
  double TokenProduct(double weights, int64_t tokens) const;

  ModelShape shape_;
  DeviceFigures f_;
  double per_key_ = 0;      // seconds for a key of one KV head, whatever the rows
  double per_row_key_ = 0;  // and for each row
};

// Bytes on the wire and in buffers; a device reports the same (Device::QueryBytes, ...).
int64_t QueryBytes(const ModelShape& shape, int64_t rows);
int64_t StateBytes(const ModelShape& shape, int64_t rows);
int64_t KvRowBytes(const ModelShape& shape);
int64_t PageLayerBytes(const ModelShape& shape);
// What each rank sends in the four all-gathers of a layer of replicated tokens.
inline constexpr int64_t kRoundHeaderBytes = sizeof(RoundHeader);
int64_t TokenQkvBytes(const ModelShape& shape, int64_t tokens, int ranks);
int64_t TokenStatesBytes(const ModelShape& shape, int64_t tokens);
int64_t TokenOutputBytes(const ModelShape& shape, int64_t tokens, int ranks);
int64_t TokenFfnBytes(const ModelShape& shape, int64_t tokens);

}  // namespace ringfill
