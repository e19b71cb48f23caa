// Attention of a batch's query tiles to one rank's KV on the CPU, and merging of states.
#pragma once

#include <cstdint>

#include "engine/compute/cpu/cpu_rank.h"
#include "engine/compute/device.h"

namespace ringfill {

// The three parts of a state buffer (device.h) of `rows` (token, head) rows.
SoftmaxRows StateRows(const std::byte* state, int64_t rows);

// See Device::Attend.
void AttendRows(CpuRank& rank, const Device::AttendArgs& args);

// See Device::MergeState.
void MergeStates(CpuRank& rank, const std::byte* from, std::byte* into, int64_t tokens);

}  // namespace ringfill
