// GPUs that die and NCCL peers that are late or gone, under a whole engine: what
// engine_failure_test.cc expects of ranks that fail.
#include <atomic>
#include <future>
#include <thread>
#include <tuple>

#include "engine/request/retry.h"
#include "engine/worker/cuda_backend.h"
#include "engine/worker/thread_workers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/cuda/gpu_engine.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

using cuda_emulation::KillDevice;
using cuda_emulation::KillDeviceAfter;
using testing::HasSubstr;

constexpr size_t kPrompt = 80, kOtherPrompt = 40, kLargePrompt = 400;
constexpr int kAnswer = 10;
// Room for lists, and for scratch beside what it grew from; not for the buffers of more tokens.
constexpr size_t kLittle = size_t{64} << 10;
// Both prompts are through in four steps; the stages of decode are graphs from the second on.
constexpr uint64_t kInPrefill = 2, kAtItsEnd = 4, kInDecode = 9;

EngineOptions FailureOptions(int ranks, uint64_t seed) {
  EngineOptions options = SmallOptions(ranks);
  options.chunk_tokens = 32;
  constexpr TokenMode kModes[] = {TokenMode::kHome, TokenMode::kDealt, TokenMode::kReplicated};
  options.mode = kModes[seed % 3];
  return options;
}

// Calls `act` once, on a rank's host thread before a step.
StepFault Before(uint64_t step, int rank, std::function<void()> act) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  return [=, act = std::move(act)](int r, uint64_t s) {
    if (r == rank && s >= step && !done->exchange(true)) act();
    return absl::OkStatus();
  };
}

std::unique_ptr<EngineRunner> Engine(const EngineOptions& options,
                                     std::function<void(uint64_t)> before_forming = {}) {
  return GpuEngine(WriteTinyModel(GpuTinyModel()), options, std::move(before_forming));
}

std::vector<TokenId> Prompt(size_t tokens) {
  return RandomPrompt(tokens, GpuTinyModel().vocab, static_cast<uint32_t>(tokens));
}

// Two requests at once get all of their tokens, the right ones.
void ExpectTwoRequestsRight(EngineRunner& runner) {
  auto first = Client::Start(runner.engine(), Greedy(Prompt(kPrompt), kAnswer));
  auto second = Client::Start(runner.engine(), Greedy(Prompt(kOtherPrompt), kAnswer));
  ASSERT_TRUE(first.ok() && second.ok());
  const Outcome outcomes[] = {(*first)->Finish(), (*second)->Finish()};
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.tokens.size(), static_cast<size_t>(kAnswer)) << outcome.status;
  }
  const Model& model = runner.engine().model();
  ExpectMatchesReference(model, Prompt(kPrompt), outcomes[0], kGpuTolerance);
  ExpectMatchesReference(model, Prompt(kOtherPrompt), outcomes[1], kGpuTolerance);
}

void ExpectOneRequestRight(EngineRunner& runner, size_t prompt) {
  const Outcome outcome = runner.Run(Greedy(Prompt(prompt), kAnswer));
  EXPECT_EQ(outcome.tokens.size(), static_cast<size_t>(kAnswer)) << outcome.status;
  ExpectMatchesReference(runner.engine().model(), Prompt(prompt), outcome, kGpuTolerance);
}

// What the engine says of itself when it is idle again.
void ExpectRing(EngineRunner& runner, int ranks, int64_t failed_steps) {
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  const EngineStatus status = runner.engine().Status();
  EXPECT_EQ(status.ranks.size(), static_cast<size_t>(ranks));
  EXPECT_EQ(status.failed_steps, failed_steps);
  EXPECT_EQ(status.epoch, static_cast<uint64_t>(failed_steps) + 1);
  EXPECT_TRUE(status.ring_formed);
  EXPECT_EQ(cuda_emulation::GetNcclCounters().misuses, 0u) << cuda_emulation::LastReport();
}

void ExpectUnavailable(const Outcome& outcome) {
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
  EXPECT_TRUE(RetryAfter(outcome.status).has_value());
}

std::string GpusName(const testing::TestParamInfo<std::tuple<int, uint64_t>>& info) {
  return std::to_string(std::get<0>(info.param)) + "gpus_" +
         std::to_string(std::get<1>(info.param));
}

// (ranks, step)
class GpuStepFailureTest : public testing::TestWithParam<std::tuple<int, uint64_t>> {
 protected:
  GpuStepFailureTest() { ResetGpus(ranks(), seed()); }
  static int ranks() { return std::get<0>(GetParam()); }
  static uint64_t step() { return std::get<1>(GetParam()); }
  static uint64_t seed() { return static_cast<uint64_t>(ranks()) + step(); }
  static EngineOptions Options() { return FailureOptions(ranks(), seed()); }
};

TEST_P(GpuStepFailureTest, RequestsGoOnWithoutAGpuThatDies) {
  EngineOptions options = Options();
  const int dies = ranks() / 2;
  // Before the step's work, early in it, and late.
  constexpr int kOperations[] = {0, 7, 45};
  const int operations = kOperations[(2 * static_cast<uint64_t>(ranks()) + step()) % 3];
  std::atomic<uint64_t> graphs{0};
  options.fault = Before(step(), dies, [&] {
    graphs = cuda_emulation::GetCounters().graph_launches;
    operations == 0 ? KillDevice(dies) : KillDeviceAfter(dies, operations);
  });
  auto runner = Engine(options);
  ExpectTwoRequestsRight(*runner);
  ExpectRing(*runner, ranks() - 1, 1);
  EXPECT_TRUE(graphs > 0 || step() != kInDecode);
  const int64_t recomputed = runner->engine().Status().recomputed_tokens;
  const auto tokens = static_cast<int64_t>(kPrompt + kOtherPrompt) + 2 * kAnswer;
  EXPECT_GT(recomputed, 0);
  EXPECT_LE(recomputed, tokens / ranks() + options.chunk_tokens);
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuStepFailureTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Values(kInPrefill, kAtItsEnd, kInDecode)),
                         GpusName);

class GpuRareFailureTest : public GpuStepFailureTest {};

TEST_P(GpuRareFailureTest, AStepThatIsTooLargeEndsItsRequestsAlone) {
  EngineOptions options = Options();
  // Buffers of replicated tokens do not grow with the prompt.
  if (options.mode == TokenMode::kReplicated) options.mode = TokenMode::kDealt;
  auto runner = Engine(options);
  ExpectOneRequestRight(*runner, kOtherPrompt);
  cuda_emulation::LimitMemory(ranks() / 2, kLittle);
  const Outcome large = runner->Run(Greedy(Prompt(kLargePrompt), kAnswer));
  EXPECT_EQ(large.status.code(), absl::StatusCode::kResourceExhausted) << large.status;
  EXPECT_THAT(std::string(large.status.message()), HasSubstr("has no memory for the step"));
  ExpectRing(*runner, ranks(), 1);
  for (int i = 0; i < 2; ++i) ExpectOneRequestRight(*runner, kOtherPrompt);
  ExpectRing(*runner, ranks(), 1);
}

TEST_P(GpuRareFailureTest, APromptThatIsTooLargeLeavesDecodesAlone) {
  EngineOptions options = Options();
  if (options.mode == TokenMode::kReplicated) options.mode = TokenMode::kDealt;
  auto runner = Engine(options);
  auto decoding = Client::Start(runner->engine(), Greedy(Prompt(kOtherPrompt), 4 * kAnswer));
  ASSERT_TRUE(decoding.ok());
  // What decodes take is there from the first one on.
  for (int tokens = 0; tokens < 3;) {
    tokens += std::holds_alternative<TokenEvent>((*decoding)->Next()) ? 1 : 0;
  }
  cuda_emulation::LimitMemory(ranks() / 2, kLittle);
  const Outcome large = runner->Run(Greedy(Prompt(kLargePrompt), kAnswer));
  EXPECT_EQ(large.status.code(), absl::StatusCode::kResourceExhausted) << large.status;
  const Outcome decoded = (*decoding)->Finish();
  EXPECT_EQ(decoded.tokens.size(), size_t{4 * kAnswer}) << decoded.status;
  ExpectMatchesReference(runner->engine().model(), Prompt(kOtherPrompt), decoded, kGpuTolerance);
  ExpectRing(*runner, ranks(), 1);
}

TEST_P(GpuRareFailureTest, TwoThatDieAtOnceCostOneStep) {
  EngineOptions options = Options();
  options.fault = Before(step(), 0, [] {
    KillDeviceAfter(0, 5);
    KillDevice(1);
  });
  auto runner = Engine(options);
  if (ranks() > 2) {
    ExpectTwoRequestsRight(*runner);
    return ExpectRing(*runner, ranks() - 2, 1);
  }
  ExpectUnavailable(runner->Run(Greedy(Prompt(kPrompt), kAnswer)));
  EXPECT_FALSE(runner->engine().Status().ring_formed);
}

TEST_P(GpuRareFailureTest, OneThatDiesWhileTheRingFormsIsLeftOutAsWell) {
  EngineOptions options = Options();
  options.fault = Before(step(), 0, [] { KillDevice(0); });
  std::atomic<int> attempts{0};
  // Before it joins, or in what the ranks exchange first.
  auto runner = Engine(options, [&](uint64_t epoch) {
    if (epoch != 2 || attempts++ > 0) return;
    ranks() == 3 ? KillDevice(1) : KillDeviceAfter(1, 3);
  });
  if (ranks() == 2) {
    // Nobody to form a ring with, so that the second one dies in its next step.
    ExpectUnavailable(runner->Run(Greedy(Prompt(kPrompt), kAnswer)));
    return;
  }
  ExpectTwoRequestsRight(*runner);
  ExpectRing(*runner, ranks() - 2, 1);
  EXPECT_EQ(attempts, 2);
}

// Until the others wait for it, and some more.
TEST_P(GpuRareFailureTest, ALatePeerIsAwaited) {
  EngineOptions options = Options();
  std::future<void> released;
  options.fault = Before(step(), 1, [&] {
    cuda_emulation::HoldNccl(1);
    const uint64_t launches = cuda_emulation::GetNcclCounters().launches;
    released = std::async(std::launch::async, [launches, peers = ranks() - 1] {
      while (cuda_emulation::GetNcclCounters().launches < launches + static_cast<uint64_t>(peers)) {
        std::this_thread::yield();
      }
      cuda_emulation::ReleaseNccl(1);
    });
  });
  auto runner = Engine(options);
  ExpectTwoRequestsRight(*runner);
  ExpectRing(*runner, ranks(), 0);
  EXPECT_TRUE(released.valid());
}

TEST_P(GpuRareFailureTest, OneThatIsLateBeyondTheDeadlineCostsTheStepAlone) {
  EngineOptions options = Options();
  options.min_round_timeout = std::chrono::seconds(2);
  options.fault = Before(step(), 1, [] { cuda_emulation::HoldNccl(1); });
  auto runner = Engine(options, [](uint64_t epoch) {
    if (epoch > 1) cuda_emulation::ReleaseNccl(1);
  });
  ExpectTwoRequestsRight(*runner);
  ExpectRing(*runner, ranks(), 1);
}

TEST_P(GpuRareFailureTest, ABrokenCommunicatorCostsTheStepAlone) {
  EngineOptions options = Options();
  options.fault = Before(step(), 1, [] { cuda_emulation::BreakNccl(1); });
  auto runner = Engine(options, [](uint64_t epoch) {
    if (epoch > 1) cuda_emulation::MendNccl(1);
  });
  ExpectTwoRequestsRight(*runner);
  ExpectRing(*runner, ranks(), 1);
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuRareFailureTest,
                         testing::Values(std::tuple(2, kInDecode), std::tuple(3, kInPrefill),
                                         std::tuple(4, kInDecode)),
                         GpusName);

TEST(GpuFailureTest, OneThatDiesWhileNothingRunsIsMissedByTheNextRequest) {
  for (const int ranks : {2, 3, 4}) {
    ResetGpus(ranks, static_cast<uint64_t>(ranks));
    auto runner = Engine(FailureOptions(ranks, 0));
    ExpectTwoRequestsRight(*runner);
    ExpectRing(*runner, ranks, 0);
    KillDevice(ranks - 1);
    ExpectTwoRequestsRight(*runner);
    ExpectRing(*runner, ranks - 1, 1);
    // What the step that missed it was about to write.
    EXPECT_LE(runner->engine().Status().recomputed_tokens, 32);
  }
}

// CUDA waits for all GPUs when it pins memory or frees it.
TEST(GpuFailureTest, StepsOfAKnownSizePinNothing) {
  ResetGpus(2, 2);
  auto runner = Engine(FailureOptions(2, 0));
  const auto pinned = [] {
    const cuda_emulation::Counters counters = cuda_emulation::GetCounters();
    return std::pair(counters.pinned, counters.unpinned);
  };
  const auto at_start = pinned();
  ExpectOneRequestRight(*runner, kPrompt);
  EXPECT_EQ(pinned(), at_start) << "what is taken at start suffices for small steps";
  ExpectOneRequestRight(*runner, kLargePrompt);
  const auto warm = pinned();
  for (int i = 0; i < 2; ++i) ExpectOneRequestRight(*runner, kLargePrompt);
  EXPECT_EQ(pinned(), warm);
}

TEST(GpuFailureTest, OneAfterTheOtherDownToNone) {
  ResetGpus(4, 6);
  EngineOptions options = FailureOptions(4, 0);
  auto runner = Engine(options);
  for (int left = 3; left > 0; --left) {
    KillDevice(left == 2 ? 0 : left);
    ExpectTwoRequestsRight(*runner);
    ExpectRing(*runner, left, 4 - left);
  }
  KillDevice(2);
  ExpectUnavailable(runner->Run(Greedy(Prompt(kPrompt), kAnswer)));
}

TEST(GpuFailureTest, WithoutAnyGpuEveryRequestEndsAndSaysWhenToTryAgain) {
  for (const uint64_t step : {kInPrefill, kInDecode}) {
    ResetGpus(1, step);
    EngineOptions options = FailureOptions(1, step);
    options.fault = Before(step, 0, [] { KillDeviceAfter(0, 7); });
    auto runner = Engine(options);
    for (int i = 0; i < 2; ++i) {
      const Outcome outcome = runner->Run(Greedy(Prompt(kPrompt), kAnswer));
      ExpectUnavailable(outcome);
      EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("every rank is lost"));
    }
    EXPECT_EQ(runner->PagesUsedWhenIdle(), 0);
    EXPECT_FALSE(runner->engine().Status().ring_formed);
  }
}

TEST(GpuFailureTest, ARingThatCannotFormIsTriedAgainUntilItCan) {
  ResetGpus(3, 8);
  EngineOptions options = FailureOptions(3, 8);
  options.fault = Before(kInDecode, 1, [] { cuda_emulation::BreakNccl(1); });
  std::atomic<bool> mend{false};
  std::promise<void> formed;
  auto runner = Engine(options, [&](uint64_t) {
    if (!mend.exchange(false)) return;
    cuda_emulation::MendNccl(1);
    formed.set_value();
  });
  for (int i = 0; i < 2; ++i) {
    ExpectUnavailable(runner->Run(Greedy(Prompt(kPrompt), kAnswer)));
    EXPECT_EQ(runner->PagesUsedWhenIdle(), 0);
    EXPECT_FALSE(runner->engine().Status().ring_formed);
  }
  // By itself.
  mend = true;
  ASSERT_EQ(formed.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  ExpectTwoRequestsRight(*runner);
  EXPECT_TRUE(runner->engine().Status().ring_formed);
  EXPECT_EQ(runner->engine().Status().ranks.size(), 3u);
}

// The leader's thread, which serves them.
TEST(GpuFailureTest, RequestsAreServedWhileTheRingForms) {
  ResetGpus(2, 9);
  const auto model = LoadModelOrDie(WriteTinyModel(GpuTinyModel()));
  ThreadWorkersOptions options;
  options.make_backend = [&](const WorkersSpec&) -> absl::StatusOr<std::unique_ptr<RankBackend>> {
    RF_ASSIGN_OR_RETURN(CudaBackend made,
                        MakeCudaBackend(model, {.ranks = 2, .kv_memory_bytes = 4 << 20}));
    return std::move(made.backend);
  };
  WorkersSpec spec;
  spec.ranks = 2;
  spec.min_round_timeout = std::chrono::minutes(1);
  spec.clock = &Clock::Real();
  const auto workers = MakeThreadWorkers(spec, model, options).value();
  cuda_emulation::HoldNccl(1);
  int calls = 0;
  const auto formed = workers->Reform(2, [&calls] { return ++calls < 5; });
  EXPECT_EQ(formed.status().code(), absl::StatusCode::kCancelled) << formed.status();
  EXPECT_EQ(calls, 5);
  cuda_emulation::ReleaseNccl(1);
}

}  // namespace
}  // namespace ringfill
