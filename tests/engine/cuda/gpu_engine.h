// Whole engines on emulated GPUs.
#pragma once

#include <memory>
#include <string>

#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/engine_runner.h"

namespace ringfill {

// An engine on GPUs 0 to options.ranks - 1, with 4 MiB of KV.
std::unique_ptr<EngineRunner> GpuEngine(const std::string& path, EngineOptions options);

}  // namespace ringfill
