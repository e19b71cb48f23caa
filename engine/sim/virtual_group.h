// The `virtual` transport: ranks as threads, transfers in simulated time. Moves no bytes but
// those of GatherOnHost.
//
// Each rank has one lane on which its exchanges and all-gathers run in the order they were started.
// One is ready when the lane is free, its `after` events are done and the host has come so far.
//   exchange    a message begins when both of its ends are ready and ends after the link's latency
//               plus bytes over bandwidth; both directions of a rank run at once (full duplex); the
//               exchange ends with the later of its two messages
//   all-gather  begins when all ranks are ready; ends for all after the gather latency plus what
//               each rank receives over the gather bandwidth
// Messages between two ranks match in order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cost/figures.h"
#include "engine/sim/virtual_time.h"

namespace ringfill {

// times: [ranks], outlive the communicators; each belongs to its rank's thread. Deadlines are of
// the real clock and guard against a rank that never comes.
std::vector<std::unique_ptr<Communicator>> MakeVirtualGroup(const Figures& figures,
                                                            const std::vector<RankTime*>& times);

// Simulated figures of what a virtual communicator has done.
struct VirtualTraffic {
  double lane_s = 0;       // transfers, without waiting
  int64_t sent_bytes = 0;  // an all-gather sends its part to every other rank
};
// REQUIRES: made by MakeVirtualGroup; called by the rank's thread or after it has ended.
VirtualTraffic TrafficOf(Communicator& communicator);

}  // namespace ringfill
