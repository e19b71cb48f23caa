#include "server/metrics/server_metrics.h"

#include "server/app/version.h"

namespace ringfill {
namespace {

// From a refusal to a prompt of millions of tokens.
const std::vector<double>& RequestBuckets() {
  static const auto* const buckets = new std::vector<double>{0.1, 1, 10, 60, 300, 900, 3600};
  return *buckets;
}

bool IsOfEngine(Rpc rpc) { return rpc == Rpc::kGenerate || rpc == Rpc::kScore; }

// Calls that neither wait for the engine nor stream end at once, whatever happens to them.
bool CanEnd(Rpc rpc, Outcome outcome) {
  return IsOfEngine(rpc) || rpc == Rpc::kTrace ||
         (outcome != Outcome::kDeadline && outcome != Outcome::kUnavailable);
}

}  // namespace

std::string_view RpcName(Rpc rpc) {
  static constexpr std::string_view kNames[kRpcs] = {
      "Generate", "Score", "Tokenize", "Detokenize", "GetModel", "GetStatus", "Trace"};
  return kNames[static_cast<int>(rpc)];
}

std::string_view OutcomeName(Outcome outcome) {
  static constexpr std::string_view kNames[kOutcomes] = {
      "ok", "cancelled", "deadline", "invalid", "exhausted", "unavailable", "error"};
  return kNames[static_cast<int>(outcome)];
}

Outcome OutcomeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return Outcome::kOk;
    case absl::StatusCode::kCancelled:
      return Outcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Outcome::kDeadline;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return Outcome::kInvalid;
    case absl::StatusCode::kResourceExhausted:
      return Outcome::kExhausted;
    case absl::StatusCode::kUnavailable:
      return Outcome::kUnavailable;
    default:
      return Outcome::kError;
  }
}

ServerMetrics::ServerMetrics(Metrics& metrics)
    : open_streams_(metrics.AddGauge("ringfill_open_streams",
                                     "Generate and Score calls in progress, queued ones too.")) {
  for (int rpc = 0; rpc < kRpcs; ++rpc) {
    const std::string name(RpcName(static_cast<Rpc>(rpc)));
    for (int outcome = 0; outcome < kOutcomes; ++outcome) {
      if (!CanEnd(static_cast<Rpc>(rpc), static_cast<Outcome>(outcome))) continue;
      requests_[rpc][outcome] = &metrics.AddCounter(
          "ringfill_requests_total", "Calls that ended, by RPC and outcome.",
          {{"rpc", name}, {"outcome", std::string(OutcomeName(static_cast<Outcome>(outcome)))}});
    }
    if (!IsOfEngine(static_cast<Rpc>(rpc))) continue;
    seconds_[rpc] = &metrics.AddHistogram(
        "ringfill_request_seconds", "Seconds from a Generate or Score call's arrival to its end.",
        RequestBuckets(), {{"rpc", name}});
  }
  metrics
      .AddGauge("ringfill_build_info", "Always 1; the label carries the version.",
                {{"version", Version()}})
      .Set(1);
}

void ServerMetrics::CountCall(Rpc rpc, Outcome outcome, double seconds) {
  if (!CanEnd(rpc, outcome)) outcome = Outcome::kError;
  requests_[static_cast<int>(rpc)][static_cast<int>(outcome)]->Increment();
  Histogram* const histogram = seconds_[static_cast<int>(rpc)];
  if (histogram != nullptr) histogram->Observe(seconds);
}

}  // namespace ringfill
