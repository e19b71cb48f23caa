// Chooses the cheapest way for each chunk by the cost model.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/cost/cost_model.h"
#include "engine/schedule/way_chooser.h"

namespace ringfill {

// Thread-safe. What it remembers changes no answer.
class CostChooser : public WayChooser {
 public:
  // Ways within this share of the cheapest tie, and the simplest of them wins: the one that needs
  // the least memory and moves rows the least.
  static constexpr double kTieShare = 0.01;

  // `model` outlives the chooser.
  explicit CostChooser(const CostModel& model) : model_(model) {}

  // REQUIRES: ranks == model.ranks().
  Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const override;

  struct Explanation {
    Way chosen;
    std::vector<Prediction> options;  // every way that is open, simplest first
    // "4096 new tokens at 8192 over 4 ranks: home pass-kv 0.123 s, *dealt pass-q 0.101 s, ..."
    std::string ToString() const;
    int64_t tokens = 0, begin = 0;
    int ranks = 0;
  };
  Explanation Explain(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const;
  // Of the way that the chunk has.
  Prediction Predict(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const;

 private:
  struct Known {
    PlacementSpec spec;
    std::shared_ptr<const Placement> placement;
  };
  std::shared_ptr<const Placement> PlacementOf(const PlacementSpec& spec, int ranks) const;

  const CostModel& model_;
  mutable Mutex mutex_;
  mutable std::vector<Known> known_ ABSL_GUARDED_BY(mutex_);  // at most kMaxKnown
};

}  // namespace ringfill
