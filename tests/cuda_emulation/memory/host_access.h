// Says what happened when host code touches device memory: a handler of SIGSEGV that prints one
// line and leaves the rest to the handler before it.
#pragma once

#include <cstddef>

namespace ringfill::cuda_emulation {

// [range, range + bytes) is device memory. Called once.
void ExplainHostAccess(const void* range, size_t bytes);

}  // namespace ringfill::cuda_emulation
