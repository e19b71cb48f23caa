// Predicted seconds of a prompt chunk for each way to compute it: token mode times attention
// strategy. Pure and quick (well under a millisecond a chunk of 8K tokens over 8 ranks). The terms,
// their sources and what is often got wrong are in docs/COST_MODEL.md.
//
// A chunk's counts (chunk_counts.h) are exact for each rank, so that a placement's imbalance is in
// the prediction; operations cost what op_cost.h says; and rounds overlap as the max-plus
// recurrences of ring_times.h have it, layer after layer in the order of prefill/ and decode/. All
// layers but the last are alike: a few are worked out, the rest follow from their slope.
#pragma once

#include <string>
#include <vector>

#include "engine/cost/chunk_counts.h"
#include "engine/cost/figures.h"
#include "engine/cost/op_cost.h"
#include "engine/cost/ring_times.h"
#include "engine/layout/placement.h"
#include "engine/schedule/way_chooser.h"

namespace ringfill {

struct CostOptions {
  ModelShape shape;
  int64_t product_tile_rows = 64;
  int64_t query_tile_rows = 192;  // tokens times heads of a group
  // Gathering more of a layer than this on one rank is not an option.
  int64_t gather_bytes = int64_t{256} << 20;
  // Chunks of more tokens are not replicated.
  int64_t max_replicated_tokens = kMaxReplicatedTokens;
};

struct Prediction {
  Way way;
  double seconds = 0;
  double busy_s = 0;       // of the busiest rank; the rest of `seconds` it waits
  int64_t ring_bytes = 0;  // sent by the rank that sends most
};

// Immutable, thread-safe.
class CostModel {
 public:
  CostModel(const CostOptions& options, Figures figures);

  int ranks() const { return figures_.ranks(); }
  const CostOptions& options() const { return options_; }
  const Figures& figures() const { return figures_; }

  // Every way that is open to the chunk, simplest first. REQUIRES: the placement is over ranks().
  std::vector<Prediction> PredictAll(const PrefillChunk& chunk, const Placement& placement) const;
  // One of them.
  Prediction Predict(const PrefillChunk& chunk, const Placement& placement, Way way) const;

 private:
  TileShape Tiles() const;
  Prediction Sharded(const PrefillChunk& chunk, const ChunkCounts& counts, Way way) const;
  Prediction Replicated(const PrefillChunk& chunk, const Placement& placement) const;
  bool GatherFits(const PrefillChunk& chunk, const Placement& placement) const;
  void AddLogits(RingTimes& times) const;

  const CostOptions options_;
  const Figures figures_;
  std::vector<OpCost> costs_;  // [ranks]
};

// "home" and the like, with the strategy where there is one: "home pass-kv", "replicated".
std::string WayName(Way way);

}  // namespace ringfill
