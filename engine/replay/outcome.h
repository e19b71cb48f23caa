// What all ranks made of a step, short enough to keep, and whether another run made the same of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/replay/plan_record.h"
#include "engine/worker/step_result.h"

namespace ringfill {

// Which rows of logits a step gives.
struct StepRows {
  uint64_t step = 0;
  uint64_t chunks = 0;  // bit c: chunk c wants logits
  int decodes = 0;
  static StepRows Of(const StepPlan& plan);
};

// `results`: of all ranks, whose slices of the vocabulary lie end to end. Rows and scores of the
// chunks in `ignored` are left out, as if those had been stopped.
OutcomeRecord OutcomeOf(const StepRows& rows, std::span<const RankStepResult> results,
                        int64_t vocab, uint64_t ignored = 0);

struct CompareOptions {
  bool strict = false;   // equal bits, or
  double tolerance = 0;  // for numbers up to 1; larger ones in proportion
};

// What was compared, and how near it came.
struct Agreement {
  int64_t rows = 0, scores = 0;
  int64_t equal_rows = 0, equal_scores = 0;  // in every bit
  double largest = 0;                        // difference, in units of the tolerance's
};

// Adds to `agreement`. The first difference in words; nothing when there is none.
std::optional<std::string> CompareOutcomes(const StepPlan& plan, const OutcomeRecord& recorded,
                                           const OutcomeRecord& replayed,
                                           const CompareOptions& options, Agreement& agreement);

}  // namespace ringfill
