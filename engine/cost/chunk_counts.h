// Exact counts of what each rank does for a chunk, as the cost model needs them: rows, keys in
// whole pages, pages held, K/V rows to send home. The same numbers follow from the batches that
// prefill/ builds; these come stripe by stripe, so that counting costs microseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost/figures.h"
#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

// How prefill/ cuts rows.
struct TileShape {
  int64_t page_tokens = 64;
  int64_t product_rows = 64;  // of a product tile
  int64_t query_tokens = 64;  // of a query tile
  int64_t row_granule = 1;    // DeviceFigures::product_row_granule
};

// What some rank's queries see of one rank's KV, for OpCost::AttendTile.
struct AttendCount {
  double token_keys = 0;  // summed over rows, each rounded up to whole pages
  double tile_keys = 0;   // summed over query tiles: what the last row of each sees, likewise
};

struct RankCount {
  int64_t rows = 0;
  int64_t rounded_rows = 0;                // product tiles rounded up
  int64_t wanted_rounded_rows = 0;         // of the tiles that the last layer finishes
  std::vector<AttendCount> attend;         // [ranks] of the KV
  std::vector<AttendCount> wanted_attend;  // [ranks] tiles that the last layer needs
  int64_t pages = 0;                       // on this rank, that the chunk's tokens see
  std::vector<int64_t> rows_home;          // [ranks] rows dealt to this rank whose home is there
};

struct ChunkCounts {
  std::vector<RankCount> ranks;
  int64_t tokens = 0;
  bool any_wanted = false;
  int rank_of_last = 0;  // computes the chunk's last position
};

// Of a chunk computed in `mode`, home or dealt, alone in its step.
ChunkCounts CountChunk(const PrefillChunk& chunk, const Placement& placement, TokenMode mode,
                       const TileShape& tiles);

// [ranks] what the tokens of a replicated chunk see on each rank, in tiles of up to `tile_tokens`.
std::vector<AttendCount> CountReplicated(const PrefillChunk& chunk, const Placement& placement,
                                         int64_t page_tokens, int64_t tile_tokens);

}  // namespace ringfill
