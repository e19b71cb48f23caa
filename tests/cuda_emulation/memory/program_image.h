// What the loader mapped of the programs and libraries of this process.
#pragma once

namespace ringfill::cuda_emulation {

// True inside a segment that cannot be written: constants and code.
bool IsReadOnlyData(const void* p);

}  // namespace ringfill::cuda_emulation
