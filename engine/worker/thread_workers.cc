#include "engine/worker/thread_workers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "base/mutex.h"
#include "engine/comm/local.h"
#include "engine/compute/cpu/cpu_device.h"
#include "engine/worker/run_step.h"

namespace ringfill {
namespace {

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(const WorkersSpec& spec, std::shared_ptr<const Model> model,
                const ThreadWorkersOptions& options);
  ~ThreadWorkers() override;

  int ranks() const override { return static_cast<int>(ranks_.size()); }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override;
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch) override;
  bool HasNewcomers() override { return false; }
  void Trace(bool on) override;
  std::vector<Device::MemoryUse> Memory() override;

 private:
  struct RankThread {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<Rank> rank;
    std::thread thread;
  };

  void RankLoop(int index);
  void RunOne(int index, const StepPlan& plan, const StepControl& control, RankStepResult& result);

  const StepFault fault_;
  const Clock& clock_;
  CpuModel model_;
  std::vector<RankThread> ranks_;

  Mutex mutex_;
  CondVar step_published_;
  CondVar step_finished_;
  const StepPlan* plan_ ABSL_GUARDED_BY(mutex_) = nullptr;
  const StepControl* control_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<RankStepResult>* results_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

CpuModelOptions SharedModelOptions(const WorkersSpec& spec, const ThreadWorkersOptions& options) {
  CpuModelOptions out = options.model;
  out.ranks = spec.ranks;
  out.strict = spec.strict;
  return out;
}

ThreadWorkers::ThreadWorkers(const WorkersSpec& spec, std::shared_ptr<const Model> model,
                             const ThreadWorkersOptions& options)
    : fault_(spec.fault),
      clock_(*spec.clock),
      model_(std::move(model), SharedModelOptions(spec, options), *spec.clock),
      ranks_(static_cast<size_t>(spec.ranks)) {
  std::vector<std::unique_ptr<Communicator>> ends = MakeLocalGroup(spec.ranks, clock_);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankThread& at = ranks_[r];
    CpuDeviceOptions device{.pages = spec.pages_per_rank,
                            .threads = spec.threads_per_rank,
                            .spin_rounds = spec.spin_rounds};
    if (options.streams) device.make_stream = options.streams(static_cast<int>(r));
    at.device = std::make_unique<CpuDevice>(model_, device);
    at.comm = std::move(ends[r]);
    at.comm->TraceTo(&at.device->trace());
    at.rank = std::make_unique<Rank>(RankOptions{.model = model_.config(),
                                                 .geometry = model_.geometry(),
                                                 .clock = &clock_,
                                                 .min_round_timeout = spec.min_round_timeout,
                                                 .gather_bytes = spec.gather_bytes},
                                     *at.device, at.comm.get());
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].thread = std::thread([this, r] { RankLoop(static_cast<int>(r)); });
  }
}

ThreadWorkers::~ThreadWorkers() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    step_published_.SignalAll();
  }
  for (RankThread& at : ranks_) at.thread.join();
}

absl::StatusOr<std::vector<int>> ThreadWorkers::Reform(uint64_t) {
  std::vector<std::unique_ptr<Communicator>> ends = MakeLocalGroup(ranks(), clock_);
  // The old group's ends go together, before their devices start anew.
  for (RankThread& at : ranks_) at.comm.swap(ends[static_cast<size_t>(&at - ranks_.data())]);
  ends.clear();
  for (RankThread& at : ranks_) {
    at.comm->TraceTo(&at.device->trace());
    at.rank->Join(at.comm.get());
    at.device->Recover();
  }
  model_.StartEpoch(ranks());
  std::vector<int> from(ranks_.size());
  std::iota(from.begin(), from.end(), 0);
  return from;
}

void ThreadWorkers::Trace(bool on) {
  for (RankThread& at : ranks_) at.device->trace().Enable(on);
}

std::vector<Device::MemoryUse> ThreadWorkers::Memory() {
  std::map<std::string, Device::MemoryUse> sums;
  for (const RankThread& at : ranks_) {
    for (const Device::MemoryUse& use : at.device->Memory()) {
      Device::MemoryUse& sum = sums[use.what];
      sum.what = use.what;
      sum.bytes += use.bytes;
      sum.peak_bytes += use.peak_bytes;
    }
  }
  const size_t weights = model_.weights().bytes();
  std::vector<Device::MemoryUse> out{{"expanded weights", weights, weights}};
  for (auto& [what, sum] : sums) out.push_back(sum);
  return out;
}

std::vector<RankStepResult> ThreadWorkers::Run(const StepPlan& plan, const StepControl& control) {
  std::vector<RankStepResult> results(ranks_.size());
  MutexLock lock(&mutex_);
  plan_ = &plan;
  control_ = &control;
  results_ = &results;
  running_ = ranks();
  ++generation_;
  step_published_.SignalAll();
  while (running_ > 0) step_finished_.Wait(&mutex_);
  return results;
}

void ThreadWorkers::RunOne(int index, const StepPlan& plan, const StepControl& control,
                           RankStepResult& result) {
  RankThread& at = ranks_[static_cast<size_t>(index)];
  if (fault_) result.status = fault_(index, plan.step);
  if (result.status.ok()) {
    result = RunStep(*at.rank, plan, control);
  }
  if (!result.status.ok()) {
    // Peers that wait for this rank must learn at once.
    at.comm->Abort(result.status);
    at.device->Abort(result.status);
  }
}

void ThreadWorkers::RankLoop(int index) {
  uint64_t seen = 0;
  while (true) {
    const StepPlan* plan;
    const StepControl* control;
    RankStepResult* result;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && generation_ == seen) step_published_.Wait(&mutex_);
      if (stop_) return;
      seen = generation_;
      plan = plan_;
      control = control_;
      result = &(*results_)[static_cast<size_t>(index)];
    }
    RunOne(index, *plan, *control, *result);
    MutexLock lock(&mutex_);
    if (--running_ == 0) step_finished_.Signal();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workers>> MakeThreadWorkers(const WorkersSpec& spec,
                                                           std::shared_ptr<const Model> model,
                                                           const ThreadWorkersOptions& options) {
  return std::make_unique<ThreadWorkers>(spec, std::move(model), options);
}

}  // namespace ringfill
