// Which rows of a step's chunks a rank computes, and in which pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

// Rows of one page: consecutive positions of one chunk.
struct PageSegment {
  int chunk;
  int64_t row;  // first row
  int rows;
  int64_t local_page;  // index in the chunk's block table on this rank
  int token_in_page;
};

// Rows that run through the layer's products together; no page is shared by two tiles, so tiles may
// store KV at once.
struct RowTile {
  int64_t row;
  int64_t rows;
  size_t first_segment, last_segment;  // half-open range of segments
};

// Rows of one chunk and stripe that attend together.
struct QueryTile {
  int chunk;
  int64_t row;
  int tokens;
};

struct RowLayout {
  std::vector<int64_t> position;  // [rows]
  std::vector<int> chunk;         // [rows]
  std::vector<PageSegment> segments;
  std::vector<RowTile> tiles;
  std::vector<QueryTile> queries;
  // [ranks][rows] KV tokens of each rank that the row sees, itself included.
  std::vector<std::vector<int64_t>> visible;

  int64_t rows() const { return static_cast<int64_t>(position.size()); }
};

struct RowLayoutOptions {
  int page_tokens = 64;
  int tile_rows = 64;     // at least page_tokens is used
  int query_tokens = 64;  // tokens of a query tile, at most
};

// The rows that `rank` computes under `placement`: those whose home it is.
RowLayout LayOutRows(const StepPlan& plan, const Placement& placement, int rank,
                     const RowLayoutOptions& options);

}  // namespace ringfill
