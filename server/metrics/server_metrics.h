// Metrics of the RPC layer. The engine has its own, beside the code that moves them.
#pragma once

#include <array>

#include "base/metrics.h"
#include "base/status.h"

namespace ringfill {

enum class Rpc { kGenerate, kScore, kTokenize, kDetokenize, kGetModel, kGetStatus, kTrace };
inline constexpr int kRpcs = 7;
std::string_view RpcName(Rpc rpc);  // "Generate", ...

// How a request ended, as operators count it.
enum class Outcome { kOk, kCancelled, kDeadline, kInvalid, kExhausted, kUnavailable, kError };
inline constexpr int kOutcomes = 7;
std::string_view OutcomeName(Outcome outcome);  // "ok", "cancelled", ...
Outcome OutcomeOf(absl::StatusCode code);

// Thread-safe. Every series exists from the start, so that rates are right from the first event.
class ServerMetrics {
 public:
  explicit ServerMetrics(Metrics& metrics);

  // One call has ended, `seconds` after its arrival.
  void CountCall(Rpc rpc, Outcome outcome, double seconds);
  // Generate and Score calls in progress.
  Gauge& open_streams() { return open_streams_; }

 private:
  std::array<std::array<Counter*, kOutcomes>, kRpcs> requests_{};  // null: cannot be
  std::array<Histogram*, kRpcs> seconds_{};                        // null: not measured
  Gauge& open_streams_;
};

}  // namespace ringfill
