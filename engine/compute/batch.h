// The rows of a step as a device takes them: which tokens, where their K/V go, what they see. Plain
// values, made by the passes once a step and shared with queued operations.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/token_id.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

// Rows of a batch whose K/V belong on this rank: `rows` consecutive tokens of one page.
struct KvStore {
  int64_t row;
  int rows;
  PageId page;
  int token_in_page;
};
// Rows of a batch whose K/V go to another rank: kv row `slot` of the outbox on.
struct KvSend {
  int64_t row;
  int rows;
  int64_t slot;
};

// Rows that run through the products together. Stores of one page never lie in two tiles, so tiles
// may run at once.
struct RowTile {
  int64_t row;
  int64_t rows;                    // at most kMaxProductRows
  size_t first_store, last_store;  // half-open ranges
  size_t first_send, last_send;
  uint64_t chunks;  // bit c: holds rows of the step's chunk c
  bool wanted;      // somebody asks for the final state of one of its rows
};

// The rows of a step's sharded chunks that one rank computes.
struct RowBatch {
  std::vector<TokenId> token;     // [rows]
  std::vector<int64_t> position;  // [rows]
  std::vector<int> chunk;         // [rows] index in the step
  std::vector<RowTile> tiles;
  std::vector<KvStore> stores;
  std::vector<KvSend> sends;
  int64_t send_slots = 0;  // kv rows of the outbox

  int64_t rows() const { return static_cast<int64_t>(position.size()); }
};

// Queries of one document of a chunk that attend together: rows [row, row + tokens) of some rank's
// batch.
struct QueryTile {
  int chunk;
  int64_t row;
  int tokens;
  int run;            // which KvRun of the batch they look at
  bool wanted;        // see RowTile
  int64_t begin = 0;  // the first KV token of the run that they see
};

// One chunk's KV on one rank: pages of a pool, or of a shard received.
struct KvRun {
  // The run's pages in order: ids of the pool; of a shard, counted from shard_offset, where empty
  // stands for 0, 1, 2, ...
  std::vector<PageId> pages;
  size_t shard_offset = 0;  // bytes
};

// What some rank's queries see of one rank's KV. No row is in two tiles.
struct AttendBatch {
  std::vector<QueryTile> tiles;
  std::vector<int64_t> visible;  // [rows] of the tile's run, the row sees KV tokens
                                 // [tile.begin, visible); at least begin, does not fall within a
                                 // tile
  std::vector<KvRun> runs;
};

// What operations tell the host; read after an event behind them. The passes make one a layer.
struct LayerFlags {
  std::atomic<uint64_t> stop_mask{0};         // OR of the headers seen
  std::atomic<uint64_t> nonfinite_chunks{0};  // bit c: a value of chunk c is not finite
  std::atomic<int> nonfinite_round{-1};       // the first round that showed it; -1: none
};

// What query tokens see of one rank's KV, in one layer.
struct SeenKeys {
  int64_t pairs = 0;
  int64_t merged_states = 0;
  int64_t empty_states = 0;

  void Add(int64_t keys) {
    pairs += keys;
    ++(keys > 0 ? merged_states : empty_states);
  }
};

// Exact counts of the work done.
struct WorkCounters {
  // Rows of sharded chunks times halves of layers: two a layer for a row that goes through both.
  int64_t product_rows = 0;
  int64_t attention_pairs = 0;  // (query token, visible key) pairs, times layers
  // Partial softmax states, one for a query token and a rank whose KV it met in a layer: with a key
  // that it sees, and without, which merge as identity.
  int64_t merged_states = 0;
  int64_t empty_states = 0;
};

}  // namespace ringfill
