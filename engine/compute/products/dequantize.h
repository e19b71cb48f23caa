// Internal to products/: the dequantisers of each instruction set, so that tests can force one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/products/weight_type.h"

namespace ringfill {

// DequantizeRow on a named instruction set. Bits are equal on all of them: a scale times an integer
// is exact in float32, so that only the final sum rounds. REQUIRES: the machine has `isa`.
void DequantizeRowOn(CpuIsa isa, WeightType type, const std::byte* row, int64_t n, float* out);
void DequantizeRowOn(CpuIsa isa, WeightType type, const std::byte* row, int64_t n, Bf16* out);

}  // namespace ringfill
