#include "engine/comm/transfer.h"

#include <algorithm>

namespace ringfill {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(2);

}  // namespace

bool AllDone(const std::vector<EventPtr>& events) {
  return std::all_of(events.begin(), events.end(),
                     [](const EventPtr& event) { return event == nullptr || event->done(); });
}

std::optional<absl::Status> AwaitAll(const std::vector<EventPtr>& events,
                                     const std::function<bool()>& give_up) {
  for (const EventPtr& event : events) {
    if (event == nullptr) continue;
    while (!event->done()) {
      if (give_up()) return std::nullopt;
      event->Await(Clock::Real().Now() + kLook).IgnoreError();  // asked again below
    }
    RF_RETURN_IF_ERROR(event->Await(Instant::max()));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
