// An ordered queue of work on a device that may run it later. The operations that fill it belong to
// the device (engine/compute/device.h).
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "engine/stream/event.h"

namespace ringfill {

struct StreamTimes {
  double busy_s = 0;  // running operations
  double wait_s = 0;  // nothing to run until an event came
};

// Used by one host thread, the rank's own. The first operation or awaited event that fails makes
// the stream skip all that is queued behind it, until Clear.
class Stream {
 public:
  virtual ~Stream() = default;

  // Completes when everything queued before has run.
  virtual EventPtr Record() = 0;
  // What is queued from now on runs after `event`; null: no effect. The wait itself fails the
  // stream when the event fails or has not come by `deadline`.
  virtual void WaitFor(EventPtr event, Instant deadline) = 0;
  // The host waits for everything queued; the first failure.
  virtual absl::Status Synchronize(Instant deadline) = 0;
  // The first failure that is known by now; does not wait.
  virtual absl::Status status() const = 0;
  // Forgets a failure. REQUIRES: everything queued has run or was skipped.
  virtual void Clear() = 0;
  // Since the last call.
  virtual StreamTimes TakeTimes() = 0;
};

}  // namespace ringfill
