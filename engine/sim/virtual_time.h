// Simulated time: what a virtual device and a virtual transport of one rank share. Times are
// seconds since the start of the simulation; they follow from the order of each rank's calls and
// from the figures alone, never from when threads run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace ringfill {

// One rank's clock, used by its host thread alone.
struct RankTime {
  // What the host has waited for: nothing that it queues or starts begins before.
  double host_s = 0;
  void HostWaitedUntil(double time_s) { host_s = std::max(host_s, time_s); }
};

// What the events of the virtual device and transport are besides an Event.
class SimulatedEvent {
 public:
  virtual ~SimulatedEvent() = default;
  // When it is done, in simulated seconds. Blocks the thread until that is known (a peer may not
  // have come so far), not longer than `deadline` of the real clock; the error of the work.
  virtual absl::StatusOr<double> AwaitTime(Instant deadline) = 0;
};

// As a span of a trace.
inline Instant SimulatedInstant(double time_s) {
  return Instant(std::chrono::duration_cast<Duration>(
      std::chrono::nanoseconds(static_cast<int64_t>(std::llround(time_s * 1e9)))));
}
inline Duration SimulatedDuration(double time_s) {
  return SimulatedInstant(time_s).time_since_epoch();
}

}  // namespace ringfill
