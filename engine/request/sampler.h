// Picks the next token from logits. Pure: the same logits, options and step give the same token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/event.h"
#include "engine/request/request.h"

namespace ringfill {

struct Sampled {
  TokenId id = 0;
  // Natural, of the unmodified distribution (temperature 1, no cuts); 0 unless asked for.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // descending, ties by lower id; empty unless asked for
};

// logits: [vocab]. `step`: number of tokens generated before; with the seed it determines the
// random draw (a counter-based generator, so replays need no state). `top_logprobs`: -1 none, else
// the token's own and the k most likely. `banned`: ids that cannot be picked (stop ids before
// min_tokens); logprobs ignore it. Order of the cuts: top-k, then temperature, min-p (of the most
// likely token that is not banned), top-p, as most servers do it; among equals the lower id is
// kept first. Greedy takes the first of equals. DATA_LOSS when a logit is not finite,
// INVALID_ARGUMENT when every id is banned.
absl::StatusOr<Sampled> Sample(std::span<const float> logits, const SamplingOptions& options,
                               int64_t step, int top_logprobs, std::span<const TokenId> banned);

// Uniform in [0, 1), multiples of 2^-53; the draw of `Sample`. Source: the SplitMix64 generator of
// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
double UniformDraw(uint64_t seed, int64_t step);

}  // namespace ringfill
