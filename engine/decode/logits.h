// The output head, sliced over the vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/worker/rank.h"

namespace ringfill {

// Logits of this rank's vocabulary slice for `hidden` (normalised rows, [rows][width], equal on
// every rank), into result.vocab_begin/end and result.logits.
void ComputeLogits(Rank& rank, const std::vector<float>& hidden, RankStepResult& result);

// Gives every rank the rows that only their home has: `mine` [rows][width] with zeros elsewhere in,
// the full rows out. One all-gather; `homes[i]` is the rank of row i.
absl::Status ShareRows(Rank& rank, const std::vector<int>& homes, std::vector<float>& mine);

}  // namespace ringfill
