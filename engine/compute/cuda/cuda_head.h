// What comes after the last layer on a GPU: the final norm, logits of a slice of the vocabulary,
// and log-likelihoods of prompt tokens. Functions as in cuda_rows.h.
#pragma once

#include <vector>

#include "engine/compute/cuda/cuda_rank.h"
#include "engine/compute/device.h"

namespace ringfill {

absl::Status QueueHiddenRows(CudaRank& rank, const float* x, const std::vector<int64_t>& rows,
                             float* out);

// The output head goes over all rows a block of the vocabulary at a time, so that logits never
// exist for more than kMostLogits of them.
absl::Status QueueScoreRows(CudaRank& rank, const float* x,
                            const std::vector<Device::ScoreRow>& rows, float* out);

absl::Status QueueLogits(CudaRank& rank, const float* hidden, int64_t rows, int64_t vocab_begin,
                         int64_t vocab_end, float* out);

// out row r = x row index[r] (device memory, null: r), normalised with the output norm.
absl::Status QueueOutputNorm(CudaRank& rank, const float* x, const int64_t* index, int64_t rows,
                             gpu::Element type, void* out);

}  // namespace ringfill
