// One rank's part of a step: what rank threads and worker processes both call.
#pragma once

#include "engine/schedule/step_plan.h"
#include "engine/worker/rank.h"
#include "engine/worker/step_result.h"
#include "engine/worker/workers.h"

namespace ringfill {

// Overwrites freed pages, runs the pass over sharded chunks and the one over replicated tokens,
// shares hidden rows and computes this rank's slice of the logits. Called by the rank's own host
// thread; every rank of the epoch runs the same plan.
//
// A result that is not OK has aborted the epoch: every rank's step fails, and the next one needs a
// new communicator. In any case nothing is queued or under way when it returns, unless the device
// itself is stuck.
//
// REQUIRES: CheckPlan (plan_check.h) would accept the plan.
RankStepResult RunStep(Rank& rank, const StepPlan& plan, const StepControl& control);

}  // namespace ringfill
