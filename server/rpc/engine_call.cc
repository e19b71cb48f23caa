#include "server/rpc/engine_call.h"

#include <chrono>
#include <iterator>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/log.h"
#include "engine/request/retry.h"
#include "server/text.h"

namespace ringfill {
namespace {

// The client's clock started first: when its deadline passes, its cancellation arrives a little
// before ours does.
constexpr auto kDeadlineSlack = std::chrono::milliseconds(100);

std::optional<Instant> DeadlineOf(const grpc::CallbackServerContext& context, Instant now) {
  using SystemClock = std::chrono::system_clock;
  const SystemClock::time_point deadline = context.deadline();
  if (deadline == SystemClock::time_point::max()) return std::nullopt;
  // One that is years away would overflow nothing, but says as little as none.
  const auto left = deadline - SystemClock::now();
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return now + std::chrono::duration_cast<Duration>(left);
}

// One that comes twice is as bad as one that cannot be read.
std::optional<Traceparent> TraceOf(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTraceparentKey);
  if (first == last || std::next(first) != last) return std::nullopt;
  return ParseTraceparent({first->second.data(), first->second.size()});
}

}  // namespace

EngineCall::EngineCall(RpcServices& services, Rpc rpc, grpc::CallbackServerContext& context)
    : services_(services),
      rpc_(rpc),
      context_(context),
      arrived_(services.clock.Now()),
      deadline_(DeadlineOf(context, arrived_)),
      trace_(TraceOf(context)) {
  services_.metrics.open_streams().Increment();
}

EngineCall::~EngineCall() { services_.calls.Remove(this); }

void EngineCall::Start(size_t request_bytes, Convert convert) {
  self_ = shared_from_this();
  if (!services_.calls.TryAdd(self_)) {
    return End(
        WithRetryAfter(absl::ResourceExhaustedError(Concat(
                           "all ", kMaxOpenCalls, " calls that may be open are; try again later")),
                       kRetrySoon));
  }
  {
    absl::MutexLock lock(&mutex_);
    ++operations_;
  }
  if (request_bytes <= kInlineMessageBytes) return ConvertAndSubmit(convert);
  // `this` stays alive: the call cannot end while the operation is under way.
  if (services_.conversions.TryPost([this, convert] { ConvertAndSubmit(convert); })) return;
  ConvertAndSubmit([] {
    return WithRetryAfter(
        absl::ResourceExhaustedError(
            Concat(kMaxWaitingConversions, " long prompts are being read; try again later")),
        kRetrySoon);
  });
}

void EngineCall::ConvertAndSubmit(const Convert& convert) {
  // Ended() may drop the last other reference as soon as the operation is over.
  const std::shared_ptr<EngineCall> keep = shared_from_this();
  absl::StatusOr<std::shared_ptr<Outbox>> outbox = absl::CancelledError();
  if (!ended()) outbox = Submit(convert());
  bool close = false;
  {
    absl::MutexLock lock(&mutex_);
    --operations_;
    if (outbox.ok()) {
      outbox_ = *outbox;
      close = end_.has_value();  // cancelled in the meantime
    } else if (!end_) {
      end_ = outbox.status();
    }
  }
  if (close) (*outbox)->Close();
  Advance();
}

absl::StatusOr<std::shared_ptr<Outbox>> EngineCall::Submit(absl::StatusOr<Request> request) {
  RF_RETURN_IF_ERROR(request.status());
  request_id_ = request->id;
  request->deadline = deadline_;
  if (trace_) request->traceparent = trace_->Text();
  context_.AddInitialMetadata("x-request-id", request_id_);
  return services_.engine.Submit(*std::move(request), [weak = weak_from_this()] {
    if (const std::shared_ptr<EngineCall> call = weak.lock()) call->Wake();
  });
}

void EngineCall::Wake() {
  if (waits_in_queue_.exchange(true)) return;
  const bool posted = services_.events.TryPost([call = shared_from_this()] {
    call->waits_in_queue_.store(false);
    call->Advance();
  });
  RF_CHECK(posted);
}

void EngineCall::Advance() {
  absl::Status status;
  switch (NextAction(status)) {
    case Action::kNothing:
      return;
    case Action::kWrite:
      return SendWrite();
    case Action::kStatus:
      return SendStatus(ToGrpcStatus(status));
  }
}

EngineCall::Action EngineCall::NextAction(absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  while (!status_sent_ && operations_ == 0) {
    if (end_) {
      status_sent_ = true;
      status = *end_;
      return Action::kStatus;
    }
    if (outbox_ == nullptr) return Action::kNothing;
    const std::optional<RequestEvent> event = outbox_->TryPop();
    if (!event) return Action::kNothing;
    Note(*event);
    if (const auto* failed = std::get_if<FailedEvent>(&*event)) {
      end_ = failed->status.ok() ? absl::InternalError("failed without a reason") : failed->status;
      continue;
    }
    last_write_ = std::holds_alternative<DoneEvent>(*event);
    if (Stage(*event)) {
      ++operations_;
      writing_since_ = services_.clock.Now();
      return Action::kWrite;
    }
    if (last_write_) end_ = absl::OkStatus();
  }
  return Action::kNothing;
}

void EngineCall::Note(const RequestEvent& event) {
  if (const auto* accepted = std::get_if<AcceptedEvent>(&event)) {
    usage_.prompt_tokens = accepted->prompt_tokens;
    usage_.cached_tokens = accepted->cached_tokens;
  } else if (std::holds_alternative<TokenEvent>(event)) {
    ++usage_.completion_tokens;
  } else if (const auto* done = std::get_if<DoneEvent>(&event)) {
    usage_ = done->usage;
    timings_ = done->timings;
  }
}

bool EngineCall::ended() const {
  absl::MutexLock lock(&mutex_);
  return end_.has_value();
}

void EngineCall::End(absl::Status status) {
  std::shared_ptr<Outbox> outbox;
  {
    absl::MutexLock lock(&mutex_);
    if (end_) return;
    end_ = std::move(status);
    outbox = outbox_;
  }
  if (outbox != nullptr) outbox->Close();
  Advance();
}

void EngineCall::WriteEnded(bool ok) {
  bool gone = false;
  {
    absl::MutexLock lock(&mutex_);
    --operations_;
    writing_since_.reset();
    gone = !ok && !end_;
    if (ok && last_write_ && !end_) end_ = absl::OkStatus();
  }
  if (gone) return PeerGone();  // may come before the notice of the cancellation
  Advance();
}

void EngineCall::PeerGone() {
  if (deadline_ && services_.clock.Now() + kDeadlineSlack >= *deadline_) {
    return End(absl::DeadlineExceededError("the call's deadline has passed"));
  }
  End(absl::CancelledError("the client cancelled or went away"));
}

void EngineCall::CheckStall(Instant now) {
  {
    absl::MutexLock lock(&mutex_);
    if (!writing_since_ || now - *writing_since_ < services_.write_stall_limit) return;
    writing_since_.reset();
    ++operations_;  // keeps the context alive for TryCancel
  }
  End(absl::CancelledError("the client does not read its stream"));
  context_.TryCancel();  // fails the write that is in flight
  {
    absl::MutexLock lock(&mutex_);
    --operations_;
  }
  Advance();
}

void EngineCall::Ended() {
  const std::shared_ptr<EngineCall> keep = std::move(self_);
  const double seconds = Seconds(services_.clock.Now() - arrived_);
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = *end_;
    outbox_.reset();
  }
  services_.metrics.CountCall(rpc_, OutcomeOf(status.code()), seconds);
  WriteLog(status, seconds);
  services_.metrics.open_streams().Decrement();
}

void EngineCall::WriteLog(const absl::Status& status, double seconds) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  nlohmann::json fields = {{"rpc", RpcName(rpc_)},
                           {"request_id", request_id_},
                           {"outcome", OutcomeName(OutcomeOf(status.code()))},
                           {"status", absl::StatusCodeToString(status.code())},
                           {"total_ms", seconds * 1e3}};
  if (trace_) {
    fields["trace_id"] = trace_->trace_id;
    fields["parent_id"] = trace_->parent_id;
  }
  absl::MutexLock lock(&mutex_);
  fields["prompt_tokens"] = usage_.prompt_tokens;
  fields["completion_tokens"] = usage_.completion_tokens;
  if (status.ok()) {
    fields["queue_ms"] = timings_.queue_ms;
    fields["prefill_ms"] = timings_.prefill_ms;
    fields["ttft_ms"] = timings_.ttft_ms;
    fields["decode_ms"] = timings_.decode_ms;
  }
  Log(LogLevel::kInfo, "request finished", fields);
}

}  // namespace ringfill
