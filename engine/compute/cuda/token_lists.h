// A batch of replicated tokens as lists for the device, padded to a bucket, so that steps of about
// the same size launch the same work and one captured graph serves them all (cuda_graphs.h).
//
// Rows beyond the batch's tokens are token 0 at position 0; they see nothing and are stored
// nowhere.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/kernels/types.h"
#include "engine/compute/device.h"

namespace ringfill {

// Batches beyond this many tokens are not padded and run without graphs: what they compute takes
// longer than its launches.
inline constexpr int64_t kGraphTokens = 64;
// Rows that a batch of so many tokens has: the next power of two, up to kGraphTokens.
int64_t PaddedTokens(int64_t tokens);

struct TokenLists {
  // `blocks`: see DecodePlanOptions.
  TokenLists(const Device::TokenBatch& batch, const gpu::DecodePlanOptions& options);

  std::vector<int32_t> token;           // [rows]
  std::vector<int64_t> position;        // [rows]
  std::vector<int64_t> begin, visible;  // [rows] see TokenBatch
  std::vector<gpu::KvTarget> targets;   // [rows]
  std::vector<gpu::KvRunView> runs;
  std::vector<uint32_t> pages;
  // With items that have no rows at the end.
  std::vector<gpu::DecodeWork> work;
  std::vector<gpu::MergeWork> merge;
  int64_t parts = 0;  // partial states, see DecodePlan
  int64_t rows() const { return static_cast<int64_t>(token.size()); }
};

}  // namespace ringfill
