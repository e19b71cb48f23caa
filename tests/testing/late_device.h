// A host stream that runs what is queued late, on a thread of its own: for tests that code above
// the device waits for what it reads. It runs operations as late as it may, that is when somebody
// waits for an event behind them, and at random moments besides.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/stream/host_stream.h"

namespace ringfill {

// The order of everything random follows `seed` and the order of calls; when threads meet follows
// the machine. What is still queued when the stream ends is dropped, and its events fail with
// CANCELLED.
std::unique_ptr<HostStream> MakeLateStream(uint64_t seed, const Clock& clock, TraceBuffer* trace);

// Streams of different seeds, one for each call, for devices of several ranks. May be called from
// several threads.
HostStreamFactory LateStreams(uint64_t seed);

}  // namespace ringfill
