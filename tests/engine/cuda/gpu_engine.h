// Whole engines on emulated GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tests/engine/cuda/gpu_ring.h"
#include "tests/testing/engine_runner.h"

namespace ringfill {

// An engine on GPUs 0 to options.ranks - 1, with 4 MiB of KV. `before_forming` is called before
// each attempt to form a ring.
std::unique_ptr<EngineRunner> GpuEngine(const std::string& path, EngineOptions options,
                                        std::function<void(uint64_t epoch)> before_forming = {});

}  // namespace ringfill
