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
  float logprob = 0;  // natural, of the unmodified distribution (temperature 1, no cuts)
  std::vector<TokenLogprob> top;  // descending, ties by lower id; empty unless asked for
};

// logits: [vocab]. `step`: number of tokens generated before; with the seed it determines the
// random draw (a counter-based generator, so replays need no state). `top_logprobs`: -1 none, else
// k. `banned`: ids that cannot be picked (stop ids before min_tokens); logprobs ignore it. Order of
// the cuts: top-k, then temperature, min-p, top-p, as most servers do it. Greedy takes the first of
// equals. DATA_LOSS when a logit is not finite.
absl::StatusOr<Sampled> Sample(std::span<const float> logits, const SamplingOptions& options,
                               int64_t step, int top_logprobs, std::span<const TokenId> banned);

}  // namespace ringfill
