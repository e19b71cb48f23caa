// Log-likelihoods of prompt tokens: the output head over many rows, a block of the vocabulary at a
// time, so that logits never exist for more than a tile of rows and a block of tokens.
#pragma once

#include <cstdint>

#include "engine/prefill/row_layout.h"
#include "engine/worker/rank.h"

namespace ringfill {

// Appends to result.scores the log-probability of the target of each of this rank's rows whose
// chunk asks for scores and was not stopped. Reads the rows' final residual from rank.x.
void ScoreChunks(Rank& rank, const StepPlan& plan, const RowLayout& layout, uint64_t stopped,
                 RankStepResult& result);

}  // namespace ringfill
