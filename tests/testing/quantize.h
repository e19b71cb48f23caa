// Encodes floats into the stored weight types, for building test models. Written from the format's
// description and independent of the dequantisers under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/compute/products/weight_type.h"

namespace ringfill {

// Round to nearest even; overflow gives infinity.
uint16_t FloatToHalf(float v);

// [rows, cols] floats, dense, to the stored form. REQUIRES: cols is a multiple of the type's block
// (32 for the quantised ones).
std::vector<std::byte> EncodeWeights(WeightType type, const std::vector<float>& values);

// The ggml type number that a file carries.
uint32_t GgufTypeId(WeightType type);

}  // namespace ringfill
