// Host memory that was pinned, allocated so or registered. Any thread may call.
#pragma once

#include <cstddef>

namespace ringfill::cuda_emulation {

void* AllocatePinned(size_t bytes);
// False when it was not allocated so.
bool FreePinned(void* p);
// False when part of it already is.
bool Register(void* p, size_t bytes);
bool Unregister(void* p);

}  // namespace ringfill::cuda_emulation
