#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/service.h"
#include "server/text.h"

namespace ringfill {
namespace {

constexpr double kMaxSeconds = 60;
constexpr size_t kPartBytes = size_t{256} << 10;  // of JSON in a message

// One Trace call. Threads: gRPC's and the tracer's. All state is under one mutex; gRPC is called
// without it. Owns itself from Start until gRPC's OnDone, which frees the tracer for others.
class TraceCall final : public Tracer::Listener,
                        public grpc::ServerWriteReactor<v1::TraceEvent>,
                        public std::enable_shared_from_this<TraceCall> {
 public:
  TraceCall(RpcServices& services, grpc::CallbackServerContext& context)
      : services_(services), context_(context), arrived_(services.clock.Now()) {}

  void Start(double seconds) {
    self_ = shared_from_this();
    absl::Status status = absl::InvalidArgumentError(
        Concat("seconds is ", seconds, "; it must be above 0 and at most ", kMaxSeconds));
    if (seconds > 0 && seconds <= kMaxSeconds) {
      status = services_.tracer.Record(FromSeconds(seconds), self_);
    }
    if (!status.ok()) End(std::move(status));
  }

  void OnProgress(double elapsed_s, int64_t spans) override {
    {
      absl::MutexLock lock(&mutex_);
      if (end_ || operations_ > 0) return;  // the next one does as well
      ++operations_;
      v1::TraceProgress& progress = *message_.mutable_progress();
      progress.set_elapsed_s(elapsed_s);
      progress.set_spans(spans);
    }
    StartWrite(&message_);
  }

  void OnRecorded(Recording recording) override {
    {
      absl::MutexLock lock(&mutex_);
      recording_ = std::move(recording);
      json_.emplace(FirstBegin(recording_.ranks, recording_.requests).value_or(Instant()));
    }
    Advance();
  }

  void OnOverdue() override {
    {
      absl::MutexLock lock(&mutex_);
      if (status_sent_) return;
      if (!end_) end_ = absl::CancelledError("the client does not read its stream");
      ++operations_;  // keeps the context alive
    }
    context_.TryCancel();  // fails the write that is in flight
    {
      absl::MutexLock lock(&mutex_);
      --operations_;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      --operations_;
      if (!ok && !end_) end_ = Gone();
    }
    Advance();
  }

  void OnCancel() override { End(Gone()); }

  void OnDone() override {
    const std::shared_ptr<TraceCall> keep = std::move(self_);
    absl::MutexLock lock(&mutex_);
    services_.metrics.CountCall(Rpc::kTrace, OutcomeOf(end_->code()),
                                Seconds(services_.clock.Now() - arrived_));
  }

 private:
  absl::Status Gone() const {
    if (std::chrono::system_clock::now() >= context_.deadline()) {
      return absl::DeadlineExceededError("the call's deadline has passed");
    }
    return absl::CancelledError("the client cancelled or went away");
  }

  void End(absl::Status status) {
    {
      absl::MutexLock lock(&mutex_);
      if (!end_) end_ = std::move(status);
    }
    Advance();
  }

  // Writes the next message, or the status once nothing is under way.
  void Advance() {
    std::optional<grpc::Status> status;
    {
      absl::MutexLock lock(&mutex_);
      if (status_sent_ || operations_ > 0 || (!end_ && !json_)) return;
      if (!end_ && summary_staged_) end_ = absl::OkStatus();
      if (end_) {
        status_sent_ = true;
        status = ToGrpcStatus(*end_);
      } else {
        ++operations_;
        Stage();
      }
    }
    if (status) return Finish(*status);
    StartWrite(&message_);
  }

  // The next part of the file, or the summary after the last.
  void Stage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    message_.Clear();
    if (json_ended_) {
      v1::TraceSummary& done = *message_.mutable_done();
      done.set_seconds(recording_.seconds);
      done.set_spans(recording_.spans);
      done.set_dropped(recording_.dropped);
      for (const auto& spans : recording_.ranks) done.set_ranks(done.ranks() + !spans.empty());
      summary_staged_ = true;
      return;
    }
    std::string& part = *message_.mutable_json();
    for (; request_ < recording_.requests.size(); ++request_) {
      if (part.size() >= kPartBytes) return;
      json_->Append(recording_.requests[request_], part);
    }
    for (; rank_ < recording_.ranks.size(); ++rank_, span_ = 0) {
      const std::vector<TraceSpan>& spans = recording_.ranks[rank_];
      for (; span_ < spans.size(); ++span_) {
        if (part.size() >= kPartBytes) return;
        json_->Append(static_cast<int>(rank_), spans[span_], part);
      }
    }
    json_->End(part);
    json_ended_ = true;
  }

  RpcServices& services_;
  grpc::CallbackServerContext& context_;
  const Instant arrived_;
  std::shared_ptr<TraceCall> self_;  // from Start to OnDone

  absl::Mutex mutex_;
  // Writes and cancellations under way: the status is sent when there is none.
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // how the call ends
  bool status_sent_ ABSL_GUARDED_BY(mutex_) = false;
  v1::TraceEvent message_;  // of the write in flight; staged under the mutex
  Recording recording_ ABSL_GUARDED_BY(mutex_);
  std::optional<TraceJson> json_ ABSL_GUARDED_BY(mutex_);  // once there is a recording
  size_t rank_ ABSL_GUARDED_BY(mutex_) = 0;                // what the next part begins with
  size_t span_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool json_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool summary_staged_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::TraceEvent>* RingfillService::Trace(
    grpc::CallbackServerContext* context, const v1::TraceRequest* request) {
  const auto call = std::make_shared<TraceCall>(services_, *context);
  call->Start(request->seconds());
  return call.get();
}

}  // namespace ringfill
