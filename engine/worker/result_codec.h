// The binary encoding of RankStepResult, from workers in other processes to the leader: made as
// StepPlan's (schedule/plan_codec.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/step_result.h"

namespace ringfill {

inline constexpr uint32_t kResultMagic = 0x53524652;  // "RFRS"
inline constexpr uint32_t kResultVersion = 2;
inline constexpr size_t kMaxResultBytes = size_t{1} << 30;
// A status's message is cut here.
inline constexpr size_t kMaxResultMessageBytes = 4096;

std::string EncodeResult(const RankStepResult& result);

// DATA_LOSS naming the field when the bytes are cut off, garbled, too many or no result;
// INVALID_ARGUMENT for another version. CheckResult comes before the result is used.
absl::StatusOr<RankStepResult> DecodeResult(std::string_view bytes);

// Does it fit the plan, so that using it touches nothing out of range? INVALID_ARGUMENT naming the
// field. The logits of a result whose status is not OK may be missing.
absl::Status CheckResult(const RankStepResult& result, const StepPlan& plan, int64_t vocab);

}  // namespace ringfill
