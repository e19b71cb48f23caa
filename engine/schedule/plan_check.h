// Is a plan safe to execute? For plans from outside the process: after this, executing it reads and
// writes no page, token, position or rank out of range, and no page that it writes is used by
// another of its sequences.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

struct PlanLimits {
  int ranks = 1;  // of the epoch
  int page_tokens = 64;
  int64_t pages_per_rank = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;  // of a sequence
  // Whose pages are looked at; unset: those of all ranks. A rank never touches another's.
  std::optional<int> rank = std::nullopt;
};

// Slots of a placement; far above kSlotsPerRank times the most ranks.
inline constexpr int kMaxSlots = 1024;

// INVALID_ARGUMENT naming the field.
absl::Status CheckPlan(const StepPlan& plan, const PlanLimits& limits);

}  // namespace ringfill
