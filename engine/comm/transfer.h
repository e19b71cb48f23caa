// What the transports share about transfers: the event that they complete, and the wait for what a
// transfer has to follow.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/stream/event.h"

namespace ringfill {

// Transfers of one rank that were started and are not done. More is a bug of the caller.
inline constexpr int kMaxOutstandingTransfers = 4096;

// Completed once, by the transport.
class HostTransfer final : public Transfer {
 public:
  absl::Status Await(Instant deadline) override { return event_.Await(deadline); }
  bool done() const override { return event_.done(); }
  Duration transfer_time() const override { return time_; }

  void Complete(absl::Status status, Duration time) {
    time_ = time;
    event_.Complete(std::move(status));
  }

 private:
  HostEvent event_;
  Duration time_{};  // ordered by event_
};

// True when none of `events` is still to come; null entries count as done.
bool AllDone(const std::vector<EventPtr>& events);

// The calling thread waits for all of `events`: OK or their first failure; none as soon as
// `give_up`, which is asked every few milliseconds, says so.
std::optional<absl::Status> AwaitAll(const std::vector<EventPtr>& events,
                                     const std::function<bool()>& give_up);

}  // namespace ringfill
