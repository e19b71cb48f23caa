#include "engine/worker/thread_workers.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/mutex.h"
#include "engine/comm/local.h"
#include "engine/compute/cpu/cpu_device.h"
#include "engine/cost/calibrate.h"
#include "engine/worker/run_step.h"

namespace ringfill {
namespace {

constexpr Duration kMeasureLimit = std::chrono::minutes(1);

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(const WorkersSpec& spec, std::shared_ptr<const Model> model,
                const ThreadWorkersOptions& options);
  ~ThreadWorkers() override;
  absl::Status Start();

  int ranks() const override { return static_cast<int>(ranks_.size()); }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override;
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch, const std::function<bool()>&) override;
  bool WantsReform() override { return false; }
  absl::StatusOr<Figures> Measure(const ModelShape& shape) override;
  void Trace(bool on) override;

 private:
  struct RankThread {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<Rank> rank;
    std::thread thread;
    bool lost = false;  // written by its thread while a step runs
  };

  using Job = std::function<RankStepResult(RankThread& at)>;
  std::vector<RankStepResult> RunOnAll(const Job& job);
  void RankLoop(RankThread& at);
  RankStepResult RunOne(RankThread& at, const StepPlan& plan, const StepControl& control);

  using Ends = std::vector<std::unique_ptr<Communicator>>;
  absl::StatusOr<Ends> MakeEnds(int ranks, uint64_t epoch) const {
    if (make_group_) return make_group_(ranks, epoch);
    return MakeLocalGroup(ranks, clock_);
  }

  const StepFault fault_;
  const Clock& clock_;
  const std::function<absl::StatusOr<Ends>(int, uint64_t)> make_group_;
  CpuModel model_;
  std::vector<std::unique_ptr<RankThread>> ranks_;  // of this epoch

  Mutex mutex_;
  CondVar step_published_;
  CondVar step_finished_;
  const Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
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
      make_group_(options.make_group),
      model_(std::move(model), SharedModelOptions(spec, options), *spec.clock),
      ranks_(static_cast<size_t>(spec.ranks)) {
  for (auto& slot : ranks_) {
    slot = std::make_unique<RankThread>();
    RankThread& at = *slot;
    at.device =
        std::make_unique<CpuDevice>(model_, CpuDeviceOptions{.pages = spec.pages_per_rank,
                                                             .threads = spec.threads_per_rank,
                                                             .spin_rounds = spec.spin_rounds,
                                                             .make_stream = options.make_stream});
    at.rank = std::make_unique<Rank>(RankOptions{.model = model_.config(),
                                                 .geometry = model_.geometry(),
                                                 .clock = &clock_,
                                                 .min_round_timeout = spec.min_round_timeout,
                                                 .gather_bytes = spec.gather_bytes},
                                     *at.device, nullptr);
  }
}

absl::Status ThreadWorkers::Start() {
  RF_RETURN_IF_ERROR(Reform(1, nullptr).status());
  for (auto& at : ranks_) at->thread = std::thread([this, &rank = *at] { RankLoop(rank); });
  return absl::OkStatus();
}

ThreadWorkers::~ThreadWorkers() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    step_published_.SignalAll();
  }
  for (auto& at : ranks_) {
    if (at->thread.joinable()) at->thread.join();
  }
}

absl::StatusOr<std::vector<int>> ThreadWorkers::Reform(uint64_t epoch,
                                                       const std::function<bool()>&) {
  // The old group's ends go together.
  for (auto& at : ranks_) at->comm.reset();
  std::vector<int> from;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->lost) from.push_back(static_cast<int>(r));
  }
  if (from.empty()) return absl::UnavailableError("every rank is lost");
  RF_ASSIGN_OR_RETURN(Ends ends, MakeEnds(static_cast<int>(from.size()), epoch));
  std::erase_if(ranks_, [](const std::unique_ptr<RankThread>& at) {
    if (at->lost) at->thread.join();
    return at->lost;
  });
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankThread& at = *ranks_[r];
    at.comm = std::move(ends[r]);
    at.comm->TraceTo(&at.device->trace());
    at.rank->Join(at.comm.get());
    at.device->Recover();
  }
  model_.StartEpoch(ranks());
  return from;
}

void ThreadWorkers::Trace(bool on) {
  for (auto& at : ranks_) at->device->trace().Enable(on);
}

std::vector<RankStepResult> ThreadWorkers::RunOnAll(const Job& job) {
  std::vector<RankStepResult> results(ranks_.size());
  MutexLock lock(&mutex_);
  job_ = &job;
  results_ = &results;
  running_ = ranks();
  ++generation_;
  step_published_.SignalAll();
  while (running_ > 0) step_finished_.Wait(&mutex_);
  return results;
}

std::vector<RankStepResult> ThreadWorkers::Run(const StepPlan& plan, const StepControl& control) {
  return RunOnAll([&](RankThread& at) { return RunOne(at, plan, control); });
}

absl::StatusOr<Figures> ThreadWorkers::Measure(const ModelShape& shape) {
  Figures figures;
  const std::vector<RankStepResult> results = RunOnAll([&](RankThread& at) {
    CalibrateOptions options;
    options.shape = shape;
    options.clock = &clock_;
    options.deadline = std::chrono::steady_clock::now() + kMeasureLimit;
    at.device->SetWaitLimit(kMeasureLimit);
    absl::StatusOr<Figures> measured = MeasureRank(*at.device, *at.comm, options);
    RankStepResult result;
    result.status = measured.status();
    if (measured.ok() && at.rank->index() == 0) figures = *std::move(measured);
    return result;
  });
  for (const RankStepResult& result : results) RF_RETURN_IF_ERROR(result.status);
  return figures;
}

RankStepResult ThreadWorkers::RunOne(RankThread& at, const StepPlan& plan,
                                     const StepControl& control) {
  const absl::Status fault = fault_ ? fault_(at.rank->index(), plan.step) : absl::OkStatus();
  if (fault.ok()) return RunStep(*at.rank, plan, control);
  at.lost = absl::IsUnavailable(fault);
  // Peers that wait for this rank must learn at once.
  at.comm->Abort(fault);
  at.device->Abort(fault);
  RankStepResult result;
  result.status = fault;
  return result;
}

void ThreadWorkers::RankLoop(RankThread& at) {
  uint64_t seen = 0;
  while (!at.lost) {
    const Job* job;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && generation_ == seen) step_published_.Wait(&mutex_);
      if (stop_) return;
      seen = generation_;
      job = job_;
    }
    RankStepResult result = (*job)(at);
    MutexLock lock(&mutex_);
    (*results_)[static_cast<size_t>(at.rank->index())] = std::move(result);
    if (--running_ == 0) step_finished_.Signal();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workers>> MakeThreadWorkers(const WorkersSpec& spec,
                                                           std::shared_ptr<const Model> model,
                                                           const ThreadWorkersOptions& options) {
  auto workers = std::make_unique<ThreadWorkers>(spec, std::move(model), options);
  RF_RETURN_IF_ERROR(workers->Start());
  return workers;
}

}  // namespace ringfill
