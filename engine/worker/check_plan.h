// What a rank looks at before it executes a plan, which may come from another process: everything
// that would otherwise be taken on trust as an index, a size or an order. INVALID_ARGUMENT names
// what is wrong.
#pragma once

#include "base/status.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/rank.h"

namespace ringfill {

// All but pages.
absl::Status CheckPlan(const StepPlan& plan, const RankOptions& options, int ranks);
// The pages of this rank. REQUIRES: CheckPlan passed, rank.BeginStep(plan) was called.
absl::Status CheckPages(const StepPlan& plan, Rank& rank);

}  // namespace ringfill
