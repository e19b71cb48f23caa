// The cost model of the epoch at hand, as the engine uses it: chooses each chunk's way by figures
// measured at start, which stay frozen while an epoch lasts and lose what belongs to lost ranks in
// the next.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/cost/cost_chooser.h"
#include "engine/cost/cost_model.h"
#include "engine/schedule/step_plan.h"
#include "engine/schedule/way_chooser.h"

namespace ringfill {

// Used by the leader alone.
class MeasuredChooser : public WayChooser {
 public:
  MeasuredChooser(const CostOptions& options, Figures figures);

  Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const override;

  // A new epoch. from[r]: the rank that is rank r now, -1: a newcomer, taken for the mean of those
  // that are left, or of all before when nobody is.
  void Regroup(std::span<const int> from);

  // Seconds of a step by its chunks' ways; nothing for a step that also decodes, which is not
  // modelled as a whole.
  std::optional<double> PredictSeconds(const StepPlan& plan) const;
  // The predicted cost of every way open to each of the step's chunks, for the debug log.
  std::string Explain(const StepPlan& plan) const;

  const Figures& figures() const { return model_->figures(); }

 private:
  void Use(Figures figures);

  const CostOptions options_;
  std::unique_ptr<const CostModel> model_;
  std::unique_ptr<const CostChooser> chooser_;
};

// One line of figures for the log.
std::string DescribeFigures(const Figures& figures);

}  // namespace ringfill
