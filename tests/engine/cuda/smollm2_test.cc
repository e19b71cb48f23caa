// A real model on emulated GPUs: a short prompt, once for each number of them, held to the CPU's
// float32 engine.
#include <map>

#include "engine/model/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/cuda/gpu_engine.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/test_files.h"

namespace ringfill {
namespace {

// Of a log-probability: bf16 weights, activations and KV through 30 layers.
constexpr double kTolerance = 0.15;
constexpr int kTokens = 3;

EngineOptions Options(int ranks) {
  EngineOptions options = SmallOptions(ranks);
  options.max_context_tokens = 256;
  return options;
}

class GpuSmolLm2Test : public testing::TestWithParam<int> {};

TEST_P(GpuSmolLm2Test, ContinuesAsTheCpuDoes) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the test model is not there";
  EngineRunner cpu(path, Options(1));
  const auto prompt = cpu.engine().tokenizer().Encode("The capital of France is", {});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const Outcome expected = cpu.Run(Greedy(*prompt, kTokens));
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ResetGpus(GetParam(), 6);
  const Outcome got = GpuEngine(path, Options(GetParam()))->Run(Greedy(*prompt, kTokens));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.text(), expected.text());
  ASSERT_EQ(got.ids(), expected.ids());
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    EXPECT_NEAR(got.tokens[i].logprob, expected.tokens[i].logprob, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, GpuSmolLm2Test, testing::ValuesIn(GpuCounts()));

}  // namespace
}  // namespace ringfill
