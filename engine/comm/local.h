// The `local` transport: ranks are threads of one process and copy from each other's buffers.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/communicator.h"

namespace ringfill {

// Makes a group of `ranks` ends. Each end has a communication lane of its own (a thread) while
// ranks > 1. Ends must be destroyed together, when no call is in progress.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int ranks,
                                                          const Clock& clock = Clock::Real());

}  // namespace ringfill
