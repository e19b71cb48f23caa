// Settings in which the ways to compute a chunk are compared in simulated time: models, machines,
// links and prompts as people run them.
#pragma once

#include <string>
#include <vector>

#include "engine/sim/simulate.h"

namespace ringfill {

struct StrategySetting {
  std::string model, machine, links, prompt;  // names
  SimSpec spec;                               // its way is not set

  // "8b, 4 x gpu, nvlink, 128 new at 64K"
  std::string Name() const;
};

// Several hundred; the same list on every call.
std::vector<StrategySetting> StrategySettings();

// One way of one setting.
struct WayOutcome {
  Way way;
  double predicted_s = 0;
  double simulated_s = 0;
};

struct StrategyOutcome {
  std::vector<WayOutcome> ways;  // every way that is open, simplest first
  size_t best = 0;               // the fastest simulated
  size_t chosen = 0;             // what the cost model picks
  double Excess() const { return ways[chosen].simulated_s / ways[best].simulated_s; }
};

absl::StatusOr<StrategyOutcome> CompareWays(const StrategySetting& setting);

}  // namespace ringfill
