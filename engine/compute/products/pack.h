// Internal to products/: expands stored weights straight into the order that matrix products read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/compute/products/weight_type.h"

namespace ringfill {

// Panels of `width` outputs one after the other; within a panel [k_padded / s][width][s], where the
// s inputs that fill 4 bytes stand together (1 of float32, 2 of bfloat16). Inputs past the weight's
// own and outputs past the last row are zero.
struct PanelOrder {
  DType dtype;
  int64_t width;
  int64_t k_padded;  // >= the weight's columns, a multiple of s
};

// Expands rows [row_begin, row_begin + n) of `w` into whole panels: n rounded up to the width,
// times k_padded, elements. `packed` is aligned to 4 bytes.
void PackPanels(CpuIsa isa, const WeightMatrix& w, int64_t row_begin, int64_t n,
                const PanelOrder& order, std::byte* packed);

}  // namespace ringfill
