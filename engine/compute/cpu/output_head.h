// What comes after the last layer on the CPU: the final norm, logits of a slice of the vocabulary,
// and log-likelihoods of prompt tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/cpu/cpu_rank.h"
#include "engine/compute/device.h"

namespace ringfill {

// out[i] = the normalised row rows[i] of x. [rows.size()][width]
void HiddenRows(CpuRank& rank, const float* x, const std::vector<int64_t>& rows, float* out);

// See Device::ScoreRows. The output head goes over many rows, a block of the vocabulary at a time,
// so that logits never exist for more than a tile of rows and a block of tokens.
void ScoreRows(CpuRank& rank, const float* x, const std::vector<Device::ScoreRow>& rows,
               float* out);

// See Device::Logits.
void Logits(CpuRank& rank, const float* hidden, int64_t rows, int64_t vocab_begin,
            int64_t vocab_end, float* out);

}  // namespace ringfill
