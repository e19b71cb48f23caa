// Ranks of the CPU backend as threads that do what a plan log says: the steps, and the rings that
// were formed on the way, newcomers included. Unlike the workers of an engine it is told who
// is in a ring.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/comm/communicator.h"
#include "engine/compute/cpu/cpu_device.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/replay/plan_record.h"
#include "engine/worker/rank.h"
#include "engine/worker/step_result.h"
#include "engine/worker/workers.h"

namespace ringfill {

// Used by one thread.
class ReplayRing {
 public:
  // The ring of epoch 1. `threads`: over all ranks. REQUIRES: the header fits the model.
  ReplayRing(std::shared_ptr<const Model> model, const PlanLogHeader& header, int threads,
             Duration min_round_timeout);

  int ranks() const { return static_cast<int>(seats_.size()); }
  // Forms the ring anew: from[r] as in Workers::Reform. REQUIRES: it names no rank twice,
  // and none that is not there.
  void Form(std::span<const int32_t> from);
  // [ranks] REQUIRES: CheckPlan would accept the plan.
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control);

 private:
  struct Seat {
    std::unique_ptr<CpuDevice> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<Rank> rank;
  };
  Seat NewSeat();

  const PlanLogHeader header_;
  const int threads_per_rank_;
  const Duration min_round_timeout_;
  CpuModel model_;
  std::vector<Seat> seats_;  // of this epoch
};

}  // namespace ringfill
