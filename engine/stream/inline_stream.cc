#include <utility>

#include "engine/stream/host_stream.h"

namespace ringfill {
namespace {

class DoneEvent final : public Event {
 public:
  explicit DoneEvent(absl::Status status) : status_(std::move(status)) {}
  absl::Status Await(Instant) override { return status_; }
  bool done() const override { return true; }

 private:
  const absl::Status status_;
};

class InlineStream final : public HostStream {
 public:
  InlineStream(const Clock& clock, TraceBuffer* trace) : clock_(clock), trace_(trace) {}

  void Enqueue(const OpLabel& label, std::function<absl::Status()> fn) override {
    if (!status_.ok()) return;
    const Instant begin = clock_.Now();
    status_ = fn();
    const Instant end = clock_.Now();
    times_.busy_s += Seconds(end - begin);
    if (trace_ != nullptr && trace_->enabled()) {
      trace_->Add({label, TraceLane::kCompute, begin, end});
    }
  }
  EventPtr Record() override { return std::make_shared<DoneEvent>(status_); }
  void WaitFor(EventPtr event, Instant deadline) override {
    if (event == nullptr || !status_.ok()) return;
    const Instant begin = clock_.Now();
    status_ = event->Await(deadline);
    times_.wait_s += Seconds(clock_.Now() - begin);
  }
  absl::Status Synchronize(Instant) override { return status_; }
  absl::Status status() const override { return status_; }
  void Clear() override { status_ = absl::OkStatus(); }
  StreamTimes TakeTimes() override { return std::exchange(times_, {}); }

 private:
  const Clock& clock_;
  TraceBuffer* const trace_;
  absl::Status status_;
  StreamTimes times_;
};

}  // namespace

std::unique_ptr<HostStream> MakeInlineStream(const Clock& clock, TraceBuffer* trace) {
  return std::make_unique<InlineStream>(clock, trace);
}

}  // namespace ringfill
