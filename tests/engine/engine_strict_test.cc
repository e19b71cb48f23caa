// numerics: strict. Equal bits whatever the number of ranks, the neighbours, the chunks and what
// went wrong on the way.
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"

namespace ringfill {
namespace {

EngineOptions StrictOptions(int ranks, CpuIsa isa, DType dtype) {
  EngineOptions options = SmallOptions(ranks);
  options.strict = true;
  options.isa = isa;
  options.dtype = dtype;
  return options;
}

// All that a client sees of the numbers.
struct Bits {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits BitsOf(const Outcome& outcome) {
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  Bits bits{outcome.ids(), {}};
  for (const TokenEvent& token : outcome.tokens) {
    bits.logprobs.push_back(token.logprob);
    for (const TokenLogprob& top : token.top) bits.logprobs.push_back(top.logprob);
  }
  return bits;
}

constexpr int kNewTokens = 20;

class EngineStrictTest : public testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    if (isa() > DetectCpuIsa()) GTEST_SKIP() << "this machine lacks " << CpuIsaName(isa());
    TinyModelOptions tiny;
    tiny.head_dim = 64;
    tiny.SetMatrixTypes(WeightType::kQ4_1);
    path_ = WriteTinyModel(tiny);
    prompt_ = RandomPrompt(1300, tiny.vocab, 12);
    for (uint32_t i = 0; i < 6; ++i) {
      neighbours_.push_back(RandomPrompt(1 + 173 * i, tiny.vocab, i));
    }
    EngineRunner runner(path_, StrictOptions(1, isa(), dtype()));
    expected_ = BitsOf(runner.Run(Greedy(prompt_, kNewTokens)));
    ASSERT_EQ(expected_.ids.size(), static_cast<size_t>(kNewTokens));
  }
  CpuIsa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  // The prompt's bits with neighbours before, beside and behind it.
  Bits RunPacked(EngineRunner& runner) {
    std::vector<std::unique_ptr<Client>> clients;
    for (size_t i = 0; i < neighbours_.size(); ++i) {
      if (i == 3) clients.push_back(*Client::Start(runner.engine(), Greedy(prompt_, kNewTokens)));
      clients.push_back(*Client::Start(runner.engine(), Greedy(neighbours_[i], 30)));
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      if (i == 3) continue;
      EXPECT_TRUE(clients[i]->Finish().status.ok());
    }
    return BitsOf(clients[3]->Finish());
  }

  std::string path_;
  std::vector<TokenId> prompt_;
  std::vector<std::vector<TokenId>> neighbours_;
  Bits expected_;
};

TEST_P(EngineStrictTest, AnyNumberOfRanksAloneAndPacked) {
  for (int ranks : {1, 2, 3, 5}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    EngineRunner runner(path_, StrictOptions(ranks, isa(), dtype()));
    EXPECT_EQ(BitsOf(runner.Run(Greedy(prompt_, kNewTokens))), expected_);
    EXPECT_EQ(RunPacked(runner), expected_);
  }
}

TEST_P(EngineStrictTest, AnyChunksThreadsAndStripes) {
  for (const auto& [chunk, threads, stripe] :
       {std::tuple{64, 2, 16}, std::tuple{1000, 6, 64}, std::tuple{4096, 3, 128}}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk, ", stripes of ", stripe));
    EngineOptions options = StrictOptions(2, isa(), dtype());
    options.chunk_tokens = chunk;
    options.threads = threads;
    options.stripe_tokens = stripe;
    EngineRunner runner(path_, options);
    EXPECT_EQ(BitsOf(runner.Run(Greedy(prompt_, kNewTokens))), expected_);
  }
}

TEST_P(EngineStrictTest, BeforeAndAfterALostRank) {
  // In mid prefill, at its end, in mid decode; and twice.
  for (const std::vector<uint64_t>& steps : {std::vector<uint64_t>{3}, {7}, {15}, {4, 12}}) {
    SCOPED_TRACE(absl::StrCat("lost in step ", steps.front()));
    EngineOptions options = StrictOptions(4, isa(), dtype());
    options.fault = [&steps](int rank, uint64_t step) {
      const bool lost = rank == 1 && std::find(steps.begin(), steps.end(), step) != steps.end();
      return lost ? absl::UnavailableError("lost") : absl::OkStatus();
    };
    EngineRunner runner(path_, options);
    EXPECT_EQ(BitsOf(runner.Run(Greedy(prompt_, kNewTokens))), expected_);
    EXPECT_EQ(runner.engine().Status().ranks.size(), 4 - steps.size());
    EXPECT_EQ(RunPacked(runner), expected_);
  }
}

// The test can tell: fast numerics give other bits for other numbers of ranks.
TEST_P(EngineStrictTest, FastNumericsDiffer) {
  bool differ = false;
  Bits first;
  for (int ranks : {1, 2, 3, 5}) {
    EngineOptions options = StrictOptions(ranks, isa(), dtype());
    options.strict = false;
    EngineRunner runner(path_, options);
    const Bits bits = BitsOf(runner.Run(Greedy(prompt_, kNewTokens)));
    if (ranks == 1) first = bits;
    differ |= bits != first;
  }
  EXPECT_TRUE(differ);
}

INSTANTIATE_TEST_SUITE_P(Isas, EngineStrictTest,
                         testing::Combine(testing::Values(CpuIsa::kAvx2, CpuIsa::kAvx512,
                                                          CpuIsa::kAvx512Bf16),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::string(CpuIsaName(std::get<0>(info.param))),
                               std::get<1>(info.param) == DType::kF32 ? "_f32" : "_bf16");
                         });

}  // namespace
}  // namespace ringfill
