// Host side of attention.h: which rows a block takes, and how decode cuts long KV. Plain values in,
// lists for the device out; no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/cuda/kernels/attention.h"

namespace ringfill::gpu {

// Query tokens [token, token + tokens) of one run that see keys from the same one on, and whose
// visible lengths do not fall.
struct TokenSpan {
  int64_t token;
  int64_t tokens;
  int32_t run;
  int32_t bit;      // see PrefillWork
  int64_t visible;  // of the last token
  int64_t begin = 0;

  int64_t keys() const { return visible - begin; }
};

// Items that see most come first, so that the short ones even out the end.
std::vector<PrefillWork> PlanPrefill(const std::vector<TokenSpan>& spans, int group);

struct DecodePlan {
  std::vector<DecodeWork> work;
  std::vector<MergeWork> merge;
  int64_t parts = 0;  // partial states: max and sum of parts * kv_heads * kDecodeRows floats
};
struct DecodePlanOptions {
  int group;
  int kv_heads;
  int blocks;  // that the device should have to do, where there are keys enough to share
};
// Rows of spans that see nothing get an item too: it empties or keeps their state.
DecodePlan PlanDecode(const std::vector<TokenSpan>& spans, const DecodePlanOptions& options);

// Keys that a part of a split looks at, at least.
inline constexpr int64_t kMinSplitKeys = 256;

}  // namespace ringfill::gpu
