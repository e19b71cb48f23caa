// Blockwise online softmax in plain C++: what machines without AVX2 run, and what shapes run that
// no vector kernel takes.
#pragma once

#include <memory>

#include "engine/compute/attention/attention.h"

namespace ringfill {

// Takes any head_dim and page_tokens that kv_layout.h allows. bf16 blocks are widened a page at a
// time, once for all rows of the tile.
std::unique_ptr<AttentionKernel> MakeBaselineAttention(const KvBlockShape& shape);

}  // namespace ringfill
