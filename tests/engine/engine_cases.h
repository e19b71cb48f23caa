// Requests on tiny models and what the plain reference says to them, for tests of the whole engine.
#pragma once

#include <vector>

#include "tests/testing/engine_runner.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {

// f32, pages and stripes of 16 tokens, chunks of 256, one thread a rank.
EngineOptions SmallOptions(int ranks);
std::vector<TokenId> RandomPrompt(size_t n, int vocab, uint32_t seed);
// Greedy, to max_tokens whatever comes, with log-probabilities of the four most likely.
Request Greedy(std::vector<TokenId> prompt, int max_tokens);

// What the reference says of a prompt and the tokens that followed it.
using Logits = std::vector<std::vector<float>>;  // [positions][vocab]
// Checks an outcome's tokens and logprobs against `logits`, the reference over prompt and tokens.
void ExpectMatches(const Logits& logits, size_t prompt_tokens, const Outcome& outcome,
                   double tolerance);
void ExpectMatchesReference(const Model& model, const std::vector<TokenId>& prompt,
                            const Outcome& outcome, double tolerance);

}  // namespace ringfill
