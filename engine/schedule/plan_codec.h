// The one binary encoding of StepPlan, for workers in other processes and for replay:
// little-endian, versioned, and canonical: equal plans have equal bytes, and bytes that decode
// encode to themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

inline constexpr uint32_t kPlanMagic = 0x4c504652;  // "RFPL"
inline constexpr uint32_t kPlanVersion = 2;
inline constexpr size_t kMaxPlanBytes = size_t{1} << 29;

std::string EncodePlan(const StepPlan& plan);

// DATA_LOSS naming the field when the bytes are cut off, garbled, too many or no plan;
// INVALID_ARGUMENT for another version. A decoded plan is well formed but may ask for anything:
// CheckPlan (plan_check.h) comes before it is executed. Allocates at most a small multiple of the
// bytes given.
absl::StatusOr<StepPlan> DecodePlan(std::string_view bytes);

}  // namespace ringfill
