#include "tests/engine/engine_cases.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"
#include "tests/testing/reference_model.h"

namespace ringfill {

EngineOptions SmallOptions(int ranks) {
  EngineOptions options;
  options.ranks = ranks;
  options.threads = ranks;
  options.dtype = DType::kF32;
  options.stripe_tokens = 16;
  options.page_tokens = 16;
  options.chunk_tokens = 256;
  options.kv_memory_bytes = 64 << 20;
  options.poison_freed_pages = true;
  return options;
}

std::vector<TokenId> RandomPrompt(size_t n, int vocab, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int> pick(kTinySpecialTokens, vocab - 1);
  std::vector<TokenId> out(n);
  for (TokenId& id : out) id = pick(rng);
  return out;
}

Request Greedy(std::vector<TokenId> prompt, int max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  request.stop.ignore_eos = true;
  request.logprobs = 4;
  return request;
}

void ExpectMatches(const Logits& logits, size_t prompt_tokens, const Outcome& outcome,
                   double tolerance) {
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (size_t i = 0; i < outcome.tokens.size(); ++i) {
    const auto& row = logits[prompt_tokens - 1 + i];
    const TokenEvent& token = outcome.tokens[i];
    const auto best = static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
    EXPECT_NEAR(ReferenceLogprob(row, best), ReferenceLogprob(row, token.id), tolerance);
    EXPECT_NEAR(token.logprob, ReferenceLogprob(row, token.id), tolerance) << "token " << i;
    for (const TokenLogprob& top : token.top) {
      EXPECT_NEAR(top.logprob, ReferenceLogprob(row, top.id), tolerance);
    }
  }
}

void ExpectMatchesReference(const Model& model, const std::vector<TokenId>& prompt,
                            const Outcome& outcome, double tolerance) {
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  std::vector<TokenId> all = prompt;
  for (TokenId id : outcome.ids()) all.push_back(id);
  ExpectMatches(ReferenceLogits(model, all), prompt.size(), outcome, tolerance);
}

}  // namespace ringfill
