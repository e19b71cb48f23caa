#include "engine/sim/virtual_stream.h"

#include <algorithm>

namespace ringfill {
namespace {

class RecordedEvent final : public Event, public SimulatedEvent {
 public:
  RecordedEvent(RankTime& time, double time_s, absl::Status status)
      : time_(time), time_s_(time_s), status_(std::move(status)) {}
  absl::Status Await(Instant) override {
    time_.HostWaitedUntil(time_s_);
    return status_;
  }
  bool done() const override { return true; }
  absl::StatusOr<double> AwaitTime(Instant) override {
    if (!status_.ok()) return status_;
    return time_s_;
  }

 private:
  RankTime& time_;
  const double time_s_;
  const absl::Status status_;
};

}  // namespace

bool VirtualStream::Run(const OpLabel& label, double seconds) {
  if (!status_.ok()) return false;
  const double begin = std::max(now_s_, time_.host_s);
  now_s_ = begin + seconds;
  times_.busy_s += seconds;
  if (trace_ != nullptr && trace_->enabled()) {
    trace_->Add({label, TraceLane::kCompute, SimulatedInstant(begin), SimulatedInstant(now_s_)});
  }
  return true;
}

EventPtr VirtualStream::Record() { return std::make_shared<RecordedEvent>(time_, now_s_, status_); }

void VirtualStream::WaitFor(EventPtr event, Instant deadline) {
  if (event == nullptr || !status_.ok()) return;
  auto* timed = dynamic_cast<SimulatedEvent*>(event.get());
  if (timed == nullptr) {
    status_ = event->Await(deadline);  // of the host's own making: takes no simulated time
    return;
  }
  absl::StatusOr<double> time_s = timed->AwaitTime(deadline);
  if (!time_s.ok()) {
    status_ = time_s.status();
    return;
  }
  const double from = std::max(now_s_, time_.host_s);
  times_.wait_s += std::max(0.0, *time_s - from);
  now_s_ = std::max(now_s_, *time_s);
}

absl::Status VirtualStream::Synchronize(Instant) {
  time_.HostWaitedUntil(now_s_);
  return status_;
}

}  // namespace ringfill
