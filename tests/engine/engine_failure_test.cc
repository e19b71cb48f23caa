// Ranks that fail: the ring forms anew and the requests go on, or end with UNAVAILABLE.
#include <algorithm>
#include <atomic>
#include <tuple>

#include "engine/request/retry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"

namespace ringfill {
namespace {

class EngineFailureTest : public testing::TestWithParam<int> {};

TEST_P(EngineFailureTest, RequestsGoOnAfterAStepThatFailed) {
  const int ranks = GetParam();
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  EngineOptions options = SmallOptions(ranks);
  // Steps 2 (prefill), 7 and 8 (decode, twice in a row).
  options.fault = [ranks](int rank, uint64_t step) {
    const bool fails = rank == ranks - 1 && (step == 2 || step == 7 || step == 8);
    return fails ? absl::InternalError("injected") : absl::OkStatus();
  };
  EngineRunner runner(path, options);
  const auto prompt = RandomPrompt(1000, tiny.vocab, 6);  // four chunks
  const Outcome outcome = runner.Run(Greedy(prompt, 9));
  EXPECT_EQ(outcome.tokens.size(), 9u);
  ExpectMatchesReference(runner.engine().model(), prompt, outcome, 1e-3);
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  const EngineStatus status = runner.engine().Status();
  EXPECT_EQ(status.epoch, 4u);
  EXPECT_EQ(status.failed_steps, 3);
}

TEST_P(EngineFailureTest, WhatFailsAgainAndAgainEndsAndSaysWhenToTryAgain) {
  const int ranks = GetParam();
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(ranks);
  std::atomic<bool> broken{true};
  options.fault = [&](int rank, uint64_t) {
    return rank == 0 && broken ? absl::InternalError("injected") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(300, tiny.vocab, 8);
  const Outcome failed = runner.Run(Greedy(prompt, 4));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kUnavailable) << failed.status;
  EXPECT_THAT(std::string(failed.status.message()), testing::HasSubstr("injected"));
  EXPECT_TRUE(RetryAfter(failed.status).has_value());
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  broken = false;
  ExpectMatchesReference(runner.engine().model(), prompt, runner.Run(Greedy(prompt, 4)), 1e-3);
}

TEST_P(EngineFailureTest, APromptWhoseStepsFailNowAndThenEndsSometime) {
  const int ranks = GetParam();
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(ranks);
  options.chunk_tokens = 64;
  options.fault = [](int rank, uint64_t step) {
    return rank == 0 && step % 2 == 0 ? absl::InternalError("injected") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  const Outcome ends = runner.Run(Greedy(RandomPrompt(900, tiny.vocab, 8), 2));  // 15 chunks
  EXPECT_TRUE(ends.status.ok()) << ends.status;
  const Outcome failed = runner.Run(Greedy(RandomPrompt(2000, tiny.vocab, 8), 2));
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kUnavailable) << failed.status;
  EXPECT_THAT(std::string(failed.status.message()),
              testing::HasSubstr("16 steps with this prompt failed, the last with: INTERNAL"));
  EXPECT_TRUE(RetryAfter(failed.status).has_value());
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineFailureTest, testing::Values(1, 2, 4));

// (ranks, step in which one is lost)
class EngineLostRankTest : public testing::TestWithParam<std::tuple<int, uint64_t>> {};

TEST_P(EngineLostRankTest, RequestsGoOnOverThoseLeftAndOnlyWhatWasLostIsComputedAgain) {
  const auto [ranks, lost_in] = GetParam();
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(ranks);
  options.fault = [ranks = ranks, lost_in = lost_in](int rank, uint64_t step) {
    return rank == ranks / 2 && step == lost_in ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  const auto prompt = RandomPrompt(1500, tiny.vocab, 6);  // six chunks
  const auto other = RandomPrompt(700, tiny.vocab, 7);
  auto first = Client::Start(runner.engine(), Greedy(prompt, 30));
  auto second = Client::Start(runner.engine(), Greedy(other, 30));
  ASSERT_TRUE(first.ok() && second.ok());
  const Outcome outcomes[] = {(*first)->Finish(), (*second)->Finish()};
  EXPECT_EQ(outcomes[0].tokens.size(), 30u);
  ExpectMatchesReference(runner.engine().model(), prompt, outcomes[0], 1e-3);
  EXPECT_EQ(outcomes[1].tokens.size(), 30u);
  ExpectMatchesReference(runner.engine().model(), other, outcomes[1], 1e-3);
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  const EngineStatus status = runner.engine().Status();
  EXPECT_EQ(status.ranks.size(), static_cast<size_t>(ranks - 1));
  EXPECT_EQ(status.failed_steps, 1);
  const int64_t tokens = 1500 + 700 + 2 * 30;
  EXPECT_GT(status.recomputed_tokens, 0);
  EXPECT_LE(status.recomputed_tokens, tokens / ranks + options.chunk_tokens);
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineLostRankTest,
                         testing::Combine(testing::Values(2, 3, 5),
                                          testing::Values(2, 5, 9, 12, 30)));

// Two requests fit on three ranks, one at a time on two.
TEST(EngineSmallerRingTest, WhatDoesNotFitNowWaitsAndGoesOnWhenOthersHaveEnded) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(3);
  const int64_t page_bytes = 16 * 2 * 2 * 2 * 16 * 4;  // tokens, layers, k and v, heads, dims, f32
  options.kv_memory_bytes = 3 * 30 * page_bytes;
  options.decode_reserve_tokens = 40;
  std::atomic<bool> lose{false};
  options.fault = [&](int rank, uint64_t) {
    return rank == 1 && lose.exchange(false) ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  EXPECT_EQ(runner.engine().info().kv_pages, 90);
  const auto prompt = RandomPrompt(560, tiny.vocab, 6);  // 38 pages with its answer
  const auto other = RandomPrompt(500, tiny.vocab, 7);   // 34
  auto first = Client::Start(runner.engine(), Greedy(prompt, 40));
  auto second = Client::Start(runner.engine(), Greedy(other, 40));
  ASSERT_TRUE(first.ok() && second.ok());
  while (!std::holds_alternative<TokenEvent>((*second)->Next())) {
  }
  lose = true;
  const Outcome outcomes[] = {(*first)->Finish(), (*second)->Finish()};
  EXPECT_EQ(runner.engine().Status().ranks.size(), 2u);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens.size(), 40u);
  }
  ExpectMatchesReference(runner.engine().model(), prompt, outcomes[0], 1e-3);
  ExpectMatchesReference(runner.engine().model(), other, outcomes[1], 1e-3);
  EXPECT_GE(runner.engine().Status().recomputed_tokens, 500);  // all of the second's
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

TEST(EngineSmallerRingTest, WhatNeverFitsEndsAndSaysWhenToTryAgain) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(2);
  const int64_t page_bytes = 16 * 2 * 2 * 2 * 16 * 4;
  options.kv_memory_bytes = 2 * 30 * page_bytes;
  options.fault = [&](int rank, uint64_t step) {
    return rank == 1 && step == 3 ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  const Outcome outcome = runner.Run(Greedy(RandomPrompt(700, tiny.vocab, 6), 3));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()), testing::HasSubstr("can never hold"));
  EXPECT_TRUE(RetryAfter(outcome.status).has_value());
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
}

TEST(EngineNoRankTest, WithoutAnyRankRequestsEndAndSayWhenToTryAgain) {
  TinyModelOptions tiny;
  EngineOptions options = SmallOptions(1);
  options.fault = [](int, uint64_t step) {
    return step == 2 ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  EngineRunner runner(WriteTinyModel(tiny), options);
  const Outcome outcome = runner.Run(Greedy(RandomPrompt(900, tiny.vocab, 6), 3));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
  EXPECT_TRUE(RetryAfter(outcome.status).has_value());
}

// The model's file with the embedding of `token` replaced by values that are not finite.
std::string WriteModelWithBrokenToken(const TinyModelOptions& tiny, TokenId token) {
  std::vector<std::byte> bytes = BuildTinyModel(tiny);
  const auto model = LoadModelOrDie(WriteTempFile(bytes, ".gguf"));
  const std::byte* row = model->embedding().Row(token);
  const size_t size = WeightRowBytes(WeightType::kF32, tiny.width);
  const auto at = std::search(bytes.begin(), bytes.end(), row, row + size);
  EXPECT_NE(at, bytes.end());
  std::fill_n(at, size, std::byte{0xff});
  return WriteTempFile(bytes, ".gguf");
}

class EngineBrokenValueTest : public testing::TestWithParam<TokenMode> {};

TEST_P(EngineBrokenValueTest, FailsItsRequestAloneAndNamesThePlace) {
  TinyModelOptions tiny;
  tiny.tied = false;
  const TokenId broken = tiny.vocab - 1;
  EngineOptions options = SmallOptions(3);
  options.mode = GetParam();
  EngineRunner runner(WriteModelWithBrokenToken(tiny, broken), options);
  auto good_prompt = RandomPrompt(300, tiny.vocab - 1, 8);
  auto bad_prompt = RandomPrompt(300, tiny.vocab - 1, 9);
  bad_prompt[150] = broken;
  auto good = Client::Start(runner.engine(), Greedy(good_prompt, 12));
  auto bad = Client::Start(runner.engine(), Greedy(bad_prompt, 12));
  ASSERT_TRUE(good.ok() && bad.ok());
  const Outcome failed = (*bad)->Finish();
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kDataLoss) << failed.status;
  EXPECT_THAT(std::string(failed.status.message()),
              testing::AllOf(testing::HasSubstr("rank "),
                             testing::HasSubstr(GetParam() == TokenMode::kReplicated
                                                    ? "layer 0, the projection to queries"
                                                    : "layer 0, ring round 0")));
  const Outcome finished = (*good)->Finish();
  EXPECT_EQ(finished.tokens.size(), 12u);
  ExpectMatchesReference(runner.engine().model(), good_prompt, finished, 1e-3);
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  EXPECT_EQ(runner.engine().Status().failed_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineBrokenValueTest,
                         testing::Values(TokenMode::kHome, TokenMode::kReplicated));

}  // namespace
}  // namespace ringfill
