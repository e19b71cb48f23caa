// The plain reference of a whole forward pass: one thread, no KV cache, no tiles, double sums.
// Slow; for tiny models and short prompts.
#pragma once

#include <vector>

#include "engine/model/model.h"
#include "engine/model/tokenizer.h"

namespace ringfill {

// Logits of every position. [tokens][vocab] document_starts: a token sees those before it from the
// last of these positions on, from 0 where there is none.
std::vector<std::vector<float>> ReferenceLogits(const Model& model,
                                                const std::vector<TokenId>& tokens,
                                                const std::vector<int64_t>& document_starts = {});

// log p of `id` under the softmax of `logits`, natural.
double ReferenceLogprob(const std::vector<float>& logits, TokenId id);

}  // namespace ringfill
