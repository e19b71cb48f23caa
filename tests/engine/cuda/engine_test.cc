// The whole engine on emulated GPUs, held to the plain reference.
#include "gtest/gtest.h"
#include "tests/engine/cuda/gpu_engine.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/reference_model.h"

namespace ringfill {
namespace {

class GpuEngineTest : public testing::TestWithParam<int> {
 protected:
  GpuEngineTest() { ResetGpus(ranks(), 11); }
  int ranks() const { return GetParam(); }
};

TEST_P(GpuEngineTest, PromptsAndScoresMatchTheReference) {
  const TinyModelOptions tiny = GpuTinyModel();
  auto runner = GpuEngine(WriteTinyModel(tiny), SmallOptions(ranks()));
  for (const size_t length : {1u, 17u, 130u}) {
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(length, tiny.vocab, 7);
    const Outcome outcome = runner->Run(Greedy(prompt, 4));
    ASSERT_EQ(outcome.tokens.size(), 4u) << outcome.status;
    ExpectMatchesReference(runner->engine().model(), prompt, outcome, kGpuTolerance);
    EXPECT_GT(outcome.done.ranks[0].busy_ms, 0);
  }
  Request request;
  request.kind = RequestKind::kScore;
  request.prompt = RandomPrompt(60, tiny.vocab, 11);
  const Outcome outcome = runner->Run(request);
  ASSERT_EQ(outcome.done.prompt_logprobs.size(), 59u) << outcome.status;
  const auto logits = ReferenceLogits(runner->engine().model(), request.prompt);
  for (size_t i = 0; i < 59; ++i) {
    EXPECT_NEAR(outcome.done.prompt_logprobs[i], ReferenceLogprob(logits[i], request.prompt[i + 1]),
                kGpuTolerance);
  }
  EXPECT_EQ(runner->PagesUsedWhenIdle(), 0);
}

TEST_P(GpuEngineTest, ALostRankEndsNoRequestOfTheOthers) {
  const TinyModelOptions tiny = GpuTinyModel();
  EngineOptions options = SmallOptions(ranks());
  // Steps 1 to 3 belong to the first request.
  options.fault = [last = ranks() - 1](int rank, uint64_t step) {
    return rank == last && last > 0 && step == 5 ? absl::UnavailableError("the GPU is gone")
                                                 : absl::OkStatus();
  };
  auto runner = GpuEngine(WriteTinyModel(tiny), options);
  for (const size_t length : {20u, 90u, 33u}) {
    SCOPED_TRACE(length);
    const auto prompt = RandomPrompt(length, tiny.vocab, 3);
    ExpectMatchesReference(runner->engine().model(), prompt, runner->Run(Greedy(prompt, 3)),
                           kGpuTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuEngineTest, testing::ValuesIn(GpuCounts()));

}  // namespace
}  // namespace ringfill
