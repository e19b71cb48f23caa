// The cost model against the simulation, in every setting of strategy_settings.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/sim/strategy_settings.h"

namespace ringfill {
namespace {

struct Compared {
  StrategySetting setting;
  StrategyOutcome outcome;
};

// Simulated once for all tests.
const std::vector<Compared>& Grid() {
  static const std::vector<Compared>* const grid = [] {
    auto* made = new std::vector<Compared>;
    for (StrategySetting& setting : StrategySettings()) {
      absl::StatusOr<StrategyOutcome> outcome = CompareWays(setting);
      EXPECT_TRUE(outcome.ok()) << setting.Name() << ": " << outcome.status();
      if (outcome.ok()) made->push_back({std::move(setting), *std::move(outcome)});
    }
    return made;
  }();
  return *grid;
}

TEST(StrategyGrid, HasAtLeast200Settings) { EXPECT_GE(Grid().size(), 200u); }

TEST(StrategyGrid, PredictionsAreWithinTenPercent) {
  for (const Compared& compared : Grid()) {
    for (const WayOutcome& way : compared.outcome.ways) {
      EXPECT_NEAR(way.predicted_s / way.simulated_s, 1, 0.10)
          << compared.setting.Name() << ": " << WayName(way.way);
    }
  }
}

TEST(StrategyGrid, AutoIsWithinThreePercentOfTheBest) {
  for (const Compared& compared : Grid()) {
    const StrategyOutcome& outcome = compared.outcome;
    EXPECT_LE(outcome.Excess(), 1.03)
        << compared.setting.Name() << ": " << WayName(outcome.ways[outcome.chosen].way)
        << " instead of " << WayName(outcome.ways[outcome.best].way);
  }
}

// A prompt of documents costs the sum of their squares, in both: every seventh setting again.
TEST(StrategyGrid, PredictionsHoldForPromptsOfDocuments) {
  const std::vector<StrategySetting> settings = StrategySettings();
  for (size_t i = 0; i < settings.size(); i += 7) {
    StrategySetting setting = settings[i];
    const int64_t cached = setting.spec.cached_tokens;
    const int64_t tokens = setting.spec.chunk_tokens.front();
    setting.spec.document_starts = {cached / 2, cached + tokens / 3, cached + tokens / 3 * 2};
    if (cached == 0 || tokens < 3) setting.spec.document_starts = {cached + tokens / 2};
    const absl::StatusOr<StrategyOutcome> outcome = CompareWays(setting);
    ASSERT_TRUE(outcome.ok()) << setting.Name() << ": " << outcome.status();
    for (const WayOutcome& way : outcome->ways) {
      EXPECT_NEAR(way.predicted_s / way.simulated_s, 1, 0.10)
          << setting.Name() << ": " << WayName(way.way);
    }
    EXPECT_LE(outcome->Excess(), 1.03) << setting.Name();
  }
}

// How much slower the fastest way without `is` is than the best one; 1 where the best is without.
template <typename Is>
double Advantage(const StrategyOutcome& outcome, Is is) {
  if (!is(outcome.ways[outcome.best].way)) return 1;
  double without = std::numeric_limits<double>::infinity();
  for (const WayOutcome& way : outcome.ways) {
    if (!is(way.way)) without = std::min(without, way.simulated_s);
  }
  // The only way that is open has no advantage.
  return std::isinf(without) ? 1 : without / outcome.ways[outcome.best].simulated_s;
}

TEST(StrategyGrid, EachStrategyIsTheBestSomewhere) {
  for (const RingStrategy strategy :
       {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
    double most = 1;
    for (const Compared& compared : Grid()) {
      most = std::max(most, Advantage(compared.outcome, [&](Way way) {
                        return way.mode != TokenMode::kReplicated && way.strategy == strategy;
                      }));
    }
    EXPECT_GT(most, 1.05) << RingStrategyName(strategy);
  }
}

TEST(StrategyGrid, EachModeIsTheBestSomewhere) {
  for (const TokenMode mode : {TokenMode::kHome, TokenMode::kDealt, TokenMode::kReplicated}) {
    double most = 1;
    for (const Compared& compared : Grid()) {
      if (compared.setting.spec.figures.ranks() == 1) continue;
      most = std::max(most, Advantage(compared.outcome, [&](Way way) { return way.mode == mode; }));
    }
    EXPECT_GT(most, 1.05) << WayName({mode, RingStrategy::kPassKv});
  }
}

}  // namespace
}  // namespace ringfill
