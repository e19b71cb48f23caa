// The `local` transport: ranks are threads of one process and copy from each other's buffers.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/communicator.h"

namespace ringfill {

// Makes a group of `ranks` ends. Each end has two lanes of its own (threads, started when first
// needed): one for exchanges, one for all-gathers that have to wait for queued work. An all-gather
// whose `after` is done runs on the calling thread, where it spins for its peers before it sleeps.
// Ends must be destroyed together, when no call is in progress; what is still under way then ends
// with CANCELLED.
std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int ranks,
                                                          const Clock& clock = Clock::Real());

}  // namespace ringfill
