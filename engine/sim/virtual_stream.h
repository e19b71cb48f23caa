// A stream on which operations take simulated time and nothing else.
#pragma once

#include <memory>
#include <utility>

#include "engine/sim/virtual_time.h"
#include "engine/stream/op_label.h"
#include "engine/stream/stream.h"
#include "engine/stream/trace.h"

namespace ringfill {

// Max-plus: an operation ends its cost after the latest of the one before it, the events waited for
// and the host's call. Used by one host thread, the rank's own. Waiting for a transfer blocks that
// thread until the peer's thread has come so far that the transfer's time is known.
class VirtualStream : public Stream {
 public:
  // `time` and `trace` (may be null) outlive the stream.
  VirtualStream(RankTime& time, TraceBuffer* trace) : time_(time), trace_(trace) {}

  // Queues an operation. False: the stream has failed, nothing was queued.
  bool Run(const OpLabel& label, double seconds);
  // Makes the stream fail here.
  void Fail(absl::Status status) { status_.Update(status); }
  // When everything queued so far has run.
  double now_s() const { return now_s_; }

  EventPtr Record() override;
  void WaitFor(EventPtr event, Instant deadline) override;
  absl::Status Synchronize(Instant deadline) override;
  absl::Status status() const override { return status_; }
  void Clear() override { status_ = absl::OkStatus(); }
  StreamTimes TakeTimes() override { return std::exchange(times_, {}); }

 private:
  RankTime& time_;
  TraceBuffer* const trace_;
  double now_s_ = 0;
  absl::Status status_;
  StreamTimes times_;
};

}  // namespace ringfill
