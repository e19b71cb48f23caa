// Ranks that are workers with a GPU each, which an engine leads over connections: workers as a
// process of its own each would run them, here as threads, because emulated GPUs and their NCCL are
// those of one process.
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/worker/process_workers.h"
#include "engine/worker/worker_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/cuda/gpu_ring.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"
#include "tests/testing/fault_proxy.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kDevices = 4;

Secret TestSecret() { return Secret::FromBytes("a secret that all of them know").value(); }

// Runs a worker.
class WorkerThread {
 public:
  explicit WorkerThread(WorkerOptions options)
      : process_(std::move(options)), thread_([this] {
          const WorkerEnd end = process_.Run();
          MutexLock lock(&mutex_);
          end_ = end;
        }) {}
  ~WorkerThread() {
    Stop();
    thread_.join();
  }

  void Stop() { process_.Stop(); }
  std::optional<WorkerEnd> end() {
    MutexLock lock(&mutex_);
    return end_;
  }

 private:
  WorkerProcess process_;
  Mutex mutex_;
  std::optional<WorkerEnd> end_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The real ones, for tests that change a part.
class ChangedMachines : public GpuMachines {
 public:
  absl::StatusOr<WorkerGpu> Look(int device) const override { return real_->Look(device); }
  absl::StatusOr<std::unique_ptr<RankMachine>> Make(
      std::shared_ptr<const Model> model, const WelcomeMessage& welcome, const WorkerGpu& gpu,
      const std::function<bool()>& stopped) const override {
    return real_->Make(std::move(model), welcome, gpu, stopped);
  }
  absl::StatusOr<std::string> NewGroupId() const override { return real_->NewGroupId(); }

 private:
  const std::shared_ptr<const GpuMachines> real_ = CudaMachines();
};

// Notes the ids that the leader gives out, and when a worker looks at its GPU.
class NotedMachines final : public ChangedMachines {
 public:
  explicit NotedMachines(std::function<void()> on_look = {}) : on_look_(std::move(on_look)) {}

  absl::StatusOr<WorkerGpu> Look(int device) const override {
    if (on_look_) on_look_();
    return ChangedMachines::Look(device);
  }
  absl::StatusOr<std::string> NewGroupId() const override {
    RF_ASSIGN_OR_RETURN(std::string id, ChangedMachines::NewGroupId());
    MutexLock lock(&mutex_);
    ids_.push_back(id);
    return id;
  }
  std::vector<std::string> ids() const {
    MutexLock lock(&mutex_);
    return ids_;
  }

 private:
  const std::function<void()> on_look_;
  mutable Mutex mutex_;
  mutable std::vector<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

class GpuProcessesTest : public testing::TestWithParam<int> {
 protected:
  GpuProcessesTest() {
    ResetGpus(kDevices, 11);
    cuda_emulation::SeparateNcclRanks();
    options_.backend = Backend::kCuda;
    options_.dtype.reset();
    options_.kv_memory_bytes = 4 << 20;
    options_.chunk_tokens = 64;
  }
  ~GpuProcessesTest() override {
    ring_.reset();
    workers_.clear();
    EXPECT_EQ(cuda_emulation::GetNcclCounters().live, 0u) << "communicators are left";
  }
  int ranks() const { return GetParam(); }

  RosterOptions Roster() const {
    RosterOptions roster = RosterForTests(path_);
    roster.start_workers = false;
    roster.secret = TestSecret();
    roster.listen = address_;
    return roster;
  }
  void ChangeToGpus(ProcessWorkersOptions& processes) const {
    processes.gpus = GpuRankOptions{.machines = machines_,
                                    .kv_memory_bytes = options_.kv_memory_bytes,
                                    .max_context_tokens = options_.max_context_tokens,
                                    .chunk_tokens = options_.chunk_tokens};
    processes.AllowForNccl();
  }

  WorkerOptions Worker(int rank) const {
    return {.leader = address_,
            .rank = rank,
            .secret = TestSecret(),
            .model_path = path_,
            .gpus = CudaMachines(),
            .device = rank,
            .rejoin = true};
  }
  void Start(WorkerOptions options) {
    workers_.push_back(std::make_unique<WorkerThread>(std::move(options)));
  }

  // A ring of so many, rank r on device r.
  void StartRing(int ranks, const std::function<void(WorkerOptions&)>& change = nullptr) {
    for (int r = 0; r < ranks; ++r) {
      WorkerOptions worker = Worker(r);
      if (change) change(worker);
      Start(std::move(worker));
    }
    options_.ranks = options_.threads = ranks;
    ring_ = std::make_unique<ProcessRing>(path_, options_, Roster(),
                                          [this](auto& processes) { ChangeToGpus(processes); });
  }
  Engine& engine() { return ring_->engine(); }
  // What an engine says whose workers were started before.
  absl::Status StartStatus(int ranks) {
    options_.ranks = options_.threads = ranks;
    const auto model = LoadModelOrDie(path_);
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    RosterOptions roster = Roster();
    roster.join_timeout = std::chrono::seconds(5);
    options_.workers = ProcessFactory(model, roster, options_.isa, worker_metrics,
                                      [this](auto& processes) { ChangeToGpus(processes); });
    return Engine::Create(options_, model, LoadTokenizerOrDie(*model), metrics).status();
  }

  void ExpectRight(size_t length, int tokens) {
    const auto prompt = RandomPrompt(length, tiny_.vocab, 7);
    ExpectRight(prompt, ring_->runner().Run(Greedy(prompt, tokens)), tokens);
  }
  void ExpectRight(const std::vector<TokenId>& prompt, const Outcome& outcome, int tokens) {
    ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(tokens)) << outcome.status;
    ExpectMatchesReference(engine().model(), prompt, outcome, kGpuTolerance);
  }
  // Runs a long prompt, with `in_between` when part of it is computed.
  void RunAcross(const std::function<void()>& in_between) {
    const auto prompt = RandomPrompt(500, tiny_.vocab, 3);
    auto client = Client::Start(engine(), Greedy(prompt, 4));
    ASSERT_TRUE(client.ok()) << client.status();
    while (!std::holds_alternative<ProgressEvent>((*client)->Next()))
      ASSERT_FALSE((*client)->ended());
    in_between();
    ExpectRight(prompt, (*client)->Finish(), 4);
  }
  bool EventuallyRanks(size_t ranks) {
    return Eventually([&] { return engine().Status().ranks.size() == ranks; });
  }

  const TinyModelOptions tiny_ = GpuTinyModel();
  const std::string path_ = WriteTinyModel(tiny_);
  const std::string address_ = Listener::Bind().value()->address();
  EngineOptions options_ = SmallOptions(1);
  const std::shared_ptr<NotedMachines> machines_ = std::make_shared<NotedMachines>();
  std::vector<std::unique_ptr<WorkerThread>> workers_;
  std::unique_ptr<ProcessRing> ring_;
};

TEST_P(GpuProcessesTest, PromptsMatchTheReference) {
  StartRing(ranks());
  EXPECT_EQ(engine().info().backend, "cuda");
  EXPECT_EQ(engine().info().transport, "processes");
  EXPECT_THAT(engine().info().gpus, HasSubstr("device 0"));
  EXPECT_GT(engine().info().kv_bytes, 3 << 20);
  EXPECT_LE(engine().info().kv_bytes, 4 << 20);
  for (const size_t length : {1u, 17u, 130u}) {
    SCOPED_TRACE(length);
    ExpectRight(length, 4);
  }
  EXPECT_EQ(ring_->runner().PagesUsedWhenIdle(), 0);
  EXPECT_EQ(engine().Status().failed_steps, 0);
  EXPECT_EQ(machines_->ids().size(), ranks() == 1 ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuProcessesTest, testing::Values(1, 2, 3));

using GpuProcessTest = GpuProcessesTest;

TEST_F(GpuProcessTest, AreMeasuredAtStart) {
  options_.measure = true;
  StartRing(2);
  ExpectRight(90, 3);
}

TEST_F(GpuProcessTest, AWorkerThatGoesMidPromptIsDoneWithoutAndItsSuccessorLetIn) {
  StartRing(3);
  RunAcross([this] { workers_[1]->Stop(); });
  EXPECT_TRUE(EventuallyRanks(2));
  ExpectRight(40, 3);
  workers_[1].reset();
  Start(Worker(1));
  EXPECT_TRUE(AwaitRanks(*ring_, 3));
  ExpectRight(90, 3);
  // No two groups have the same.
  std::vector<std::string> ids = machines_->ids();
  ASSERT_GE(ids.size(), 3u);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

// As when its process is killed: its GPU takes part no more and its connection breaks. The others
// wait inside NCCL for the round's timeout, unless they are told.
TEST_F(GpuProcessTest, TheOthersDoNotWaitForAKilledWorker) {
  const auto proxy = FaultProxy::Start(address_);
  StartRing(3, [&](WorkerOptions& worker) {
    if (worker.rank != 1) return;
    worker.leader = proxy->address();
    worker.rejoin = false;
  });
  Instant before;
  RunAcross([&] {
    before = Clock::Real().Now();
    cuda_emulation::HoldNccl(1);
    proxy->Set({.fault = Fault::kCut});
  });
  EXPECT_LT(Clock::Real().Now() - before, options_.min_round_timeout / 2);
  EXPECT_TRUE(EventuallyRanks(2));
  EXPECT_TRUE(Eventually([&] { return workers_[1]->end() == WorkerEnd::kLeaderGone; }));
  cuda_emulation::ReleaseNccl(1);
}

TEST_F(GpuProcessTest, AWorkerWhoseGpuDiesSaysSoAndEnds) {
  StartRing(3);
  cuda_emulation::SetQuiet(true);
  RunAcross([] { cuda_emulation::KillDevice(2); });
  EXPECT_TRUE(Eventually([&] { return workers_[2]->end() == WorkerEnd::kDeviceLost; }));
  EXPECT_TRUE(EventuallyRanks(2));
  ExpectRight(40, 3);
  // The leader's metric tells it from a crash.
  const auto left = static_cast<size_t>(LossReason::kLeft);
  EXPECT_EQ(ring_->worker_metrics().lost[left]->Value(), 1);
}

// Rank 2's transfers do not start, so that the ring without rank 1 cannot form; then rank 2 goes.
TEST_F(GpuProcessTest, FormingIsGivenUpWhenAnotherAttemptComes) {
  StartRing(3);
  cuda_emulation::HoldNccl(2);
  workers_[1]->Stop();
  auto client = Client::Start(engine(), Greedy(RandomPrompt(40, tiny_.vocab, 7), 3));
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(Eventually([&] { return machines_->ids().size() == 2; }));
  const Instant before = Clock::Real().Now();
  workers_[2]->Stop();
  ASSERT_TRUE(EventuallyRanks(1));
  EXPECT_LT(Clock::Real().Now() - before, std::chrono::seconds(15));  // half of an attempt's time
  ExpectRight(RandomPrompt(40, tiny_.vocab, 7), (*client)->Finish(), 3);
  cuda_emulation::ReleaseNccl(2);
}

// Starting CUDA may take longer than the leader bears silence.
TEST_F(GpuProcessTest, TheGpuIsLookedAtBeforeTheLeaderWaits) {
  const auto proxy = FaultProxy::Start(address_);
  std::atomic<int> looks{0};
  std::atomic<int64_t> said_before{0};
  const auto noted = std::make_shared<NotedMachines>([&] {
    ++looks;
    said_before = proxy->bytes();
  });
  StartRing(1, [&](WorkerOptions& worker) {
    worker.leader = proxy->address();
    worker.gpus = noted;
  });
  ExpectRight(40, 3);
  EXPECT_GE(looks, 1);
  EXPECT_EQ(said_before, 0);
  ring_.reset();
  workers_.clear();
}

// A large model on a slow disk: its weights come until nobody needs them any more.
class SlowMachines final : public ChangedMachines {
 public:
  absl::StatusOr<std::unique_ptr<RankMachine>> Make(
      std::shared_ptr<const Model> model, const WelcomeMessage& welcome, const WorkerGpu& gpu,
      const std::function<bool()>& stopped) const override {
    return ChangedMachines::Make(std::move(model), welcome, gpu, [this, &stopped] {
      uploading_ = true;
      while (!stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return true;
    });
  }
  bool uploading() const { return uploading_; }

 private:
  mutable std::atomic<bool> uploading_{false};
};

TEST_F(GpuProcessTest, AWorkerThatIsToldToStopDoesSoWhileItsWeightsCome) {
  const auto slow = std::make_shared<SlowMachines>();
  WorkerOptions worker = Worker(0);
  worker.gpus = slow;
  Start(worker);
  auto leader = std::async(std::launch::async, [this] { return StartStatus(1); });
  ASSERT_TRUE(Eventually([&] { return slow->uploading(); }));
  workers_[0]->Stop();
  EXPECT_TRUE(Eventually([&] { return workers_[0]->end() == WorkerEnd::kGoodbye; }));
  EXPECT_FALSE(leader.get().ok());
}

TEST_F(GpuProcessTest, AWorkerThatLosesItsLeaderWhileItsWeightsComeTellsSo) {
  const auto proxy = FaultProxy::Start(address_);
  const auto slow = std::make_shared<SlowMachines>();
  WorkerOptions worker = Worker(0);
  worker.leader = proxy->address();
  worker.gpus = slow;
  worker.rejoin = false;
  Start(worker);
  auto leader = std::async(std::launch::async, [this] { return StartStatus(1); });
  ASSERT_TRUE(Eventually([&] { return slow->uploading(); }));
  proxy->Set({.fault = Fault::kCut});
  EXPECT_TRUE(Eventually([&] { return workers_[0]->end() == WorkerEnd::kLeaderGone; }));
  EXPECT_FALSE(leader.get().ok());
}

// A GPU that does not give its memory back: not for so long that the test would end by that.
class HungMachine final : public RankMachine {
 public:
  explicit HungMachine(std::unique_ptr<RankMachine> real) : real_(std::move(real)) {}
  ~HungMachine() override { std::this_thread::sleep_for(std::chrono::minutes(1)); }

  Device& device() override { return real_->device(); }
  const KvGeometry& geometry() const override { return real_->geometry(); }
  absl::StatusOr<std::unique_ptr<Communicator>> JoinRing(const RingTerms& terms,
                                                         std::vector<int>& missing) override {
    return real_->JoinRing(terms, missing);
  }
  void StartEpoch() override { real_->StartEpoch(); }

 private:
  const std::unique_ptr<RankMachine> real_;
};

class HungMachines final : public ChangedMachines {
 public:
  absl::StatusOr<std::unique_ptr<RankMachine>> Make(
      std::shared_ptr<const Model> model, const WelcomeMessage& welcome, const WorkerGpu& gpu,
      const std::function<bool()>& stopped) const override {
    RF_ASSIGN_OR_RETURN(auto machine,
                        ChangedMachines::Make(std::move(model), welcome, gpu, stopped));
    return std::make_unique<HungMachine>(std::move(machine));
  }
};

// It would keep the GPU from the worker that comes next.
TEST_F(GpuProcessTest, AWorkerEndsThoughItsGpuHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StartRing(1, [](WorkerOptions& worker) { worker.gpus = std::make_shared<HungMachines>(); });
        workers_[0]->Stop();
        workers_.clear();
      },
      testing::ExitedWithCode(5), "the rank does not end: the process exits");
}

TEST_F(GpuProcessTest, AWorkerWithoutAGpuIsRefusedByName) {
  Start(Worker(0));
  WorkerOptions without = Worker(1);
  without.gpus = nullptr;
  Start(without);
  EXPECT_THAT(std::string(StartStatus(2).message()),
              AllOf(HasSubstr("rank 1: "), HasSubstr("ranks.backend: the leader's ranks compute on "
                                                     "GPUs, this worker has none: this build")));
  EXPECT_TRUE(Eventually([&] { return workers_[1]->end() == WorkerEnd::kRefused; }));
}

TEST_F(GpuProcessTest, AGpuThatIsNotThereIsNamed) {
  WorkerOptions beyond = Worker(0);
  beyond.device = kDevices;
  Start(beyond);
  EXPECT_THAT(std::string(StartStatus(1).message()),
              HasSubstr("there is no GPU 4 here: this machine has 0 to 3"));
}

TEST_F(GpuProcessTest, TwoWorkersDoNotShareAGpu) {
  Start(Worker(0));
  WorkerOptions same = Worker(1);
  same.device = 0;
  Start(same);
  EXPECT_THAT(std::string(StartStatus(2).message()),
              AllOf(HasSubstr("computes on the same GPU, device 0"), HasSubstr("--device")));
}

TEST_F(GpuProcessTest, AContextThatDoesNotFitIsRefusedWithTheNumbers) {
  options_.max_context_tokens = 1 << 20;
  for (int r = 0; r < 2; ++r) Start(Worker(r));
  const absl::Status status = StartStatus(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model.max_context_tokens is 1048576"), HasSubstr("rank 0 (pid "),
                    HasSubstr("device 0"), HasSubstr("the largest context that fits is")));
}

// One worker alone calls no NCCL.
TEST_F(GpuProcessTest, SeveralWorkersRefuseToUseAnOldNccl) {
  cuda_emulation::SetNcclVersion(22406);
  StartRing(1);
  ExpectRight(17, 2);
  ring_.reset();
  workers_.clear();
  for (int r = 0; r < 2; ++r) Start(Worker(r));
  EXPECT_THAT(std::string(StartStatus(2).message()), HasSubstr("this is 2.24.6"));
  EXPECT_TRUE(Eventually([&] { return workers_[0]->end() == WorkerEnd::kRefused; }));
}

TEST_F(GpuProcessTest, F32IsRefusedBeforeAnybodyIsAwaited) {
  options_.dtype = DType::kF32;
  EXPECT_THAT(std::string(StartStatus(2).message()), HasSubstr("compute.dtype"));
}

TEST_F(GpuProcessTest, WithoutSupportNobodyLeadsGpus) {
  WorkersSpec spec;
  ProcessWorkersOptions processes;
  processes.gpus.emplace();
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  const auto model = LoadModelOrDie(path_);
  EXPECT_EQ(MakeProcessWorkers(spec, *model, processes, worker_metrics).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ringfill
