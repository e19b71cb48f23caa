#include "engine/worker/thread_workers.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "engine/cost/calibrate.h"
#include "engine/worker/run_step.h"

namespace ringfill {
namespace {

constexpr Duration kMeasureLimit = std::chrono::minutes(1);
// Until a ring that could not form is tried again, while nothing else asks for one; doubles.
constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr Duration kMostRetry = std::chrono::seconds(30);

class ThreadWorkers final : public Workers {
 public:
  ThreadWorkers(const WorkersSpec& spec, std::unique_ptr<RankBackend> backend);
  ~ThreadWorkers() override;
  absl::Status Start();

  int ranks() const override { return static_cast<int>(ranks_.size()); }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override;
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch, const std::function<bool()>&) override;
  bool WantsReform() override { return !formed_ && !AllLost() && clock_.Now() >= retry_at_; }
  absl::StatusOr<Figures> Measure(const ModelShape& shape) override;
  void Trace(bool on) override;

 private:
  struct RankThread {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<Rank> rank;
    std::thread thread;
    int first_rank = 0;  // its number at the start
    // For good. Written by its thread while a step runs, between steps under the lock.
    bool lost = false;
  };

  using Job = std::function<RankStepResult(RankThread& at)>;
  std::vector<RankStepResult> RunOnAll(const Job& job);
  void RankLoop(RankThread& at);
  RankStepResult RunOne(RankThread& at, const StepPlan& plan, const StepControl& control);

  absl::Status MakeDevices();
  // A group of the ranks that are not lost; finds out which are.
  absl::StatusOr<RankBackend::Ends> FormGroup(uint64_t epoch,
                                              const std::function<bool()>& while_waiting);
  // Marks ranks whose devices are lost; whether there are new ones.
  bool NoteLost();
  void DropLost();
  bool AllLost() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& at) { return at->lost; });
  }

  const WorkersSpec spec_;
  const Clock& clock_;
  const std::unique_ptr<RankBackend> backend_;
  // Of this epoch; those of the one before while no ring is formed.
  std::vector<std::unique_ptr<RankThread>> ranks_;
  bool formed_ = false;
  Instant retry_at_;
  Duration retry_pause_ = kFirstRetry;

  Mutex mutex_;
  CondVar step_published_;
  CondVar step_finished_;
  const Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<RankStepResult>* results_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

CpuBackendOptions CpuOptions(const WorkersSpec& spec, const ThreadWorkersOptions& options) {
  CpuBackendOptions out;
  out.model = options.model;
  out.model.ranks = spec.ranks;
  out.model.strict = spec.strict;
  out.pages_per_rank = spec.pages_per_rank;
  out.threads_per_rank = spec.threads_per_rank;
  out.spin_rounds = spec.spin_rounds;
  out.make_stream = options.make_stream;
  out.make_group = options.make_group;
  out.clock = spec.clock;
  return out;
}

ThreadWorkers::ThreadWorkers(const WorkersSpec& spec, std::unique_ptr<RankBackend> backend)
    : spec_(spec),
      clock_(*spec.clock),
      backend_(std::move(backend)),
      ranks_(static_cast<size_t>(spec.ranks)) {
  for (auto& slot : ranks_) slot = std::make_unique<RankThread>();
}

absl::Status ThreadWorkers::MakeDevices() {
  std::vector<absl::Status> made(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    // Each may take a model to its device.
    threads.emplace_back([&, r] {
      absl::StatusOr<std::unique_ptr<Device>> device = backend_->MakeDevice(static_cast<int>(r));
      made[r] = device.status();
      if (device.ok()) ranks_[r]->device = *std::move(device);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : made) RF_RETURN_IF_ERROR(status);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankThread& at = *ranks_[r];
    at.first_rank = static_cast<int>(r);
    at.rank = std::make_unique<Rank>(RankOptions{.model = backend_->config(),
                                                 .geometry = backend_->geometry(),
                                                 .clock = &clock_,
                                                 .min_round_timeout = spec_.min_round_timeout,
                                                 .gather_bytes = spec_.gather_bytes},
                                     *at.device, nullptr);
  }
  return absl::OkStatus();
}

absl::Status ThreadWorkers::Start() {
  RF_RETURN_IF_ERROR(MakeDevices());
  RF_RETURN_IF_ERROR(Reform(1, nullptr).status());
  if (ranks() != spec_.ranks) {
    return absl::UnavailableError("a rank's device failed while the ring formed");
  }
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
  // All ends before the first device: until then others may use its memory.
  for (auto& at : ranks_) at->comm.reset();
}

absl::StatusOr<std::vector<int>> ThreadWorkers::Reform(uint64_t epoch,
                                                       const std::function<bool()>& while_waiting) {
  // The old group's ends go together.
  for (auto& at : ranks_) at->comm.reset();
  absl::StatusOr<RankBackend::Ends> formed = FormGroup(epoch, while_waiting);
  formed_ = formed.ok();
  if (!formed_) {
    retry_at_ = clock_.Now() + retry_pause_;
    retry_pause_ = std::min<Duration>(2 * retry_pause_, kMostRetry);
    return std::move(formed).status();
  }
  retry_pause_ = kFirstRetry;
  RankBackend::Ends ends = *std::move(formed);
  std::vector<int> from;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->lost) from.push_back(static_cast<int>(r));
  }
  DropLost();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankThread& at = *ranks_[r];
    at.comm = std::move(ends[r]);
    at.comm->TraceTo(&at.device->trace());
    at.rank->Join(at.comm.get());
    at.device->Recover();
  }
  backend_->StartEpoch(ranks());
  return from;
}

absl::StatusOr<RankBackend::Ends> ThreadWorkers::FormGroup(
    uint64_t epoch, const std::function<bool()>& while_waiting) {
  NoteLost();
  for (;;) {
    std::vector<int> members;
    for (const auto& at : ranks_) {
      if (!at->lost) members.push_back(at->first_rank);
    }
    if (members.empty()) return absl::UnavailableError("every rank is lost");
    absl::StatusOr<RankBackend::Ends> ends = backend_->MakeGroup(members, epoch, while_waiting);
    // A device that dies now fails all: the others try again without it.
    if (ends.ok() || !NoteLost()) return ends;
  }
}

bool ThreadWorkers::NoteLost() {
  bool found = false;
  for (auto& at : ranks_) {
    if (at->lost || !at->device->lost()) continue;
    found = true;
    Log(LogLevel::kError, "the device of a rank is lost; restart the daemon to use it again",
        {{"rank_at_start", at->first_rank}});
    MutexLock lock(&mutex_);
    at->lost = true;
  }
  return found;
}

void ThreadWorkers::DropLost() {
  {
    MutexLock lock(&mutex_);
    step_published_.SignalAll();
  }
  std::erase_if(ranks_, [](const std::unique_ptr<RankThread>& at) {
    if (at->lost && at->thread.joinable()) at->thread.join();
    return at->lost;
  });
}

void ThreadWorkers::Trace(bool on) {
  for (auto& at : ranks_) at->device->trace().Enable(on);
}

std::vector<RankStepResult> ThreadWorkers::RunOnAll(const Job& job) {
  std::vector<RankStepResult> results(ranks_.size());
  if (!formed_) {
    for (RankStepResult& result : results) {
      result.status = absl::UnavailableError("no ring is formed");
    }
    return results;
  }
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
  const absl::Status fault =
      spec_.fault ? spec_.fault(at.rank->index(), plan.step) : absl::OkStatus();
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
  for (;;) {
    const Job* job;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && !at.lost && generation_ == seen) step_published_.Wait(&mutex_);
      if (stop_ || at.lost) return;
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
  std::unique_ptr<RankBackend> backend;
  if (options.make_backend) {
    RF_ASSIGN_OR_RETURN(backend, options.make_backend(spec));
  } else {
    backend = MakeCpuBackend(std::move(model), CpuOptions(spec, options));
  }
  auto workers = std::make_unique<ThreadWorkers>(spec, std::move(backend));
  RF_RETURN_IF_ERROR(workers->Start());
  return workers;
}

}  // namespace ringfill
