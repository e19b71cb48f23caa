// A token of the model's vocabulary.
#pragma once

#include <cstdint>

namespace ringfill {

using TokenId = int32_t;

}  // namespace ringfill
