// Rings on emulated GPUs, and on real ones in builds with RINGFILL_GPU_TESTS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/ring_harness.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {

// Numbers of GPUs to test with: 1 to 4, as many as there are.
std::vector<int> GpuCounts();

// The emulation anew, with this many devices; everything random follows the seed.
// Real GPUs are as they are.
void ResetGpus(int devices, uint64_t seed);

// Whether ranks that are made from now on find a library's attention, which then takes all that
// fits, however short. Real GPUs go on with what there is.
void OfferFusedAttention(bool there);
// What it has done since: pairs of a query row and a key, over KV heads' rows; -1: nobody counts.
int64_t FusedPairs();

// How many GPUs, and whether a library's attention is beside the kernels.
using GpuCase = std::tuple<int, bool>;
// The kernels alone on every number of GPUs, and a library's on `beside` of them, or as many as
// there are: what is beside it does not depend on the number.
std::vector<GpuCase> GpuCases(int beside);
// "3gpus_library", "1gpus_kernels"
std::string GpuCaseName(const testing::TestParamInfo<GpuCase>& info);

// A harness whose ranks are GPUs 0 to ranks - 1, joined by NCCL.
RingHarnessOptions GpuRing(int ranks);

// The smallest heads that attention takes.
TinyModelOptions GpuTinyModel();

// Logits are of order one; weights, activations and KV are rounded to bf16.
inline constexpr double kGpuTolerance = 0.1;

}  // namespace ringfill
