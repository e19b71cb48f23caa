// Random plans that pass CheckPlan under kPlanLimits.
#pragma once

#include <random>

#include "engine/schedule/plan_check.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

inline constexpr PlanLimits kPlanLimits = {
    .ranks = 3, .page_tokens = 16, .pages_per_rank = 4000, .vocab = 5000, .max_positions = 100000};

StepPlan RandomPlan(std::mt19937& random);

}  // namespace ringfill
