// The ranks of one engine, wherever they run: threads of this process (thread_workers.h) or
// processes (process_workers.h). They execute step plans together and never schedule.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/cost/figures.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/step_result.h"

namespace ringfill {

// The leader's side of a running step, besides the plan. Called from other threads than the
// leader's.
struct StepControl {
  // Should work on this chunk stop (cancelled, past its deadline)? Asked before each layer.
  std::function<bool(int chunk)> should_stop;
  // Rank 0 has finished `layers_done` layers of the step's chunks.
  std::function<void(int layers_done)> on_layer;
};

// The KV pages of ranks on GPUs, which depend on the GPUs.
struct GpuPages {
  int64_t per_rank = 0;
  std::string gpus;  // described
};

// Used by one thread, the leader.
class Workers {
 public:
  virtual ~Workers() = default;

  // Ranks of the current epoch.
  virtual int ranks() const = 0;
  // Where WorkersSpec::pages_per_rank left them open.
  virtual GpuPages gpu_pages() const { return {}; }
  // Runs one step on every rank and returns each rank's result, indexed by rank. Ends within the
  // step's deadline. When a rank fails, all do, and the next step needs Reform() first.
  // REQUIRES: plan.ranks == ranks().
  virtual std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) = 0;

  // Forms a new ring after a failed step, of the ranks that are left and of newcomers that wait.
  // from[r]: the rank of the epoch before that is rank r now, its pages kept; -1: a newcomer, whose
  // pages are empty. UNAVAILABLE when no rank is left. May take seconds, within a bound; meanwhile
  // calls `while_waiting`, where given, several times a second on the calling thread, and ends with
  // CANCELLED when that says false.
  virtual absl::StatusOr<std::vector<int>> Reform(uint64_t epoch,
                                                  const std::function<bool()>& while_waiting) = 0;
  // Calling Reform between steps would let somebody in, or mend a ring that has broken meanwhile.
  virtual bool WantsReform() = 0;

  // Measures the ranks and the links between them (engine/cost/calibrate.h). REQUIRES: no sequence
  // has pages.
  virtual absl::StatusOr<Figures> Measure(const ModelShape& shape) = 0;

  // Starts or ends the recording of TraceSpans on every rank.
  virtual void Trace(bool on) = 0;
};

// For tests of failure, with ranks as threads: asked by each rank before each step. A status that
// is not OK fails the rank's step; UNAVAILABLE means that the rank is lost for good.
using StepFault = std::function<absl::Status(int rank, uint64_t step)>;

// Bounded spinning of compute threads where each has a core.
inline constexpr int kSpinRounds = 2000;

// What the engine wants of its ranks.
struct WorkersSpec {
  int ranks = 1;
  int threads_per_rank = 1;
  bool threads_settled_here = false;  // by this machine's cores; ranks elsewhere settle their own
  int spin_rounds = 0;                // kSpinRounds, or 0 where threads outnumber cores
  int64_t pages_per_rank = 0;  // 0: of GPUs of other processes, which say what they have room for
  Duration min_round_timeout{};
  size_t gather_bytes = 0;  // most that gather-KV may hold of one layer on a rank
  bool strict = false;
  StepFault fault;
  const Clock* clock = nullptr;
};

}  // namespace ringfill
