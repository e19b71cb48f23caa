// How a chunk is computed: chosen by a cost model (engine/cost) or forced by config.
#pragma once

#include "engine/schedule/step_plan.h"

namespace ringfill {

struct Way {
  TokenMode mode = TokenMode::kHome;
  RingStrategy strategy = RingStrategy::kPassKv;
  friend bool operator==(const Way&, const Way&) = default;
};

// Pure and deterministic, so that a plan depends on its inputs alone.
class WayChooser {
 public:
  virtual ~WayChooser() = default;
  // For `chunk`, whose mode and strategy are not set yet, under `placement`, over `ranks` ranks.
  virtual Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement,
                     int ranks) const = 0;
};

}  // namespace ringfill
