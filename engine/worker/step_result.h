// What a rank reports to the leader after a step; result_codec.h has its binary form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/compute/device.h"
#include "engine/stream/trace.h"

namespace ringfill {

struct ScoredToken {
  int chunk = 0;
  int64_t position = 0;  // of the token that predicts
  float logprob = 0;     // natural, of the token after it
};

// The first value of a sequence that is not finite, as this rank saw it.
struct ValueFault {
  // Where in the layer; rounds of the ring's attention are their number, from 0 on.
  static constexpr int kProducts = -1;
  // Of replicated tokens: in this rank's part of a stage (Device::TokenStage), in order.
  static constexpr int kTokenQkv = -2, kTokenAttention = -3, kTokenOutput = -4, kTokenFfn = -5;

  int entry = 0;  // of the plan: its chunks, then its decodes
  int layer = 0;
  int round = kProducts;
};
// "layer 3, ring round 1".
std::string DescribePlace(const ValueFault& fault);
// Did `a` come before `b` in the step? Values that are not finite spread, so the first place of all
// ranks is where it began.
bool IsEarlier(const ValueFault& a, const ValueFault& b);

// A rank's communication in a step.
enum class CommKind {
  kRing,       // a round of the ring's attention: one exchange
  kHome,       // K/V rows to the ranks that keep them: likewise
  kAllGather,  // of replicated tokens, four a layer
  kHost,       // an all-gather of a few bytes of the host
};
inline constexpr int kCommKinds = 4;
std::string_view CommKindName(CommKind kind);  // "ring", "home", "all_gather", "host"

// Upper bounds of the buckets in which all-gathers' transfer times are counted, in seconds. The
// ranks sort them because a step of decodes has a hundred.
inline constexpr std::array<double, 11> kGatherBounds = {
    0.000003, 0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1};

struct CommCounts {
  std::array<int64_t, kCommKinds> rounds{};  // that ended, of each CommKind
  int64_t gather_bytes = 0;                  // sent in all-gathers, to all other ranks together
  std::array<int64_t, kGatherBounds.size() + 1> gather_times{};
  double gather_s = 0;  // the sum of those times

  void AddGatherTime(double seconds) {
    const auto bound = std::lower_bound(kGatherBounds.begin(), kGatherBounds.end(), seconds);
    ++gather_times[static_cast<size_t>(bound - kGatherBounds.begin())];
    gather_s += seconds;
  }
};

struct RankStepResult {
  absl::Status status;
  double prefill_busy_s = 0, prefill_wait_s = 0;
  double decode_busy_s = 0, decode_wait_s = 0;
  int64_t ring_bytes = 0;  // sent
  double transfer_s = 0;   // the communication lane's time for them
  // The part of it in which the rank computed.
  double hidden_s() const { return std::max(0.0, transfer_s - prefill_wait_s); }
  std::vector<double> round_seconds;  // transfer time of each ring round
  CommCounts comm;
  MemoryBytes memory{};  // when the step ended
  WorkCounters work;
  uint64_t stopped_mask = 0;  // chunks that all ranks stopped working on
  std::vector<ValueFault> faults;
  // Logits of this rank's vocabulary slice: [logit rows][vocab_end - vocab_begin]. Rows: chunks
  // that want logits and were not stopped, then decodes, in plan order.
  int64_t vocab_begin = 0, vocab_end = 0;
  std::vector<float> logits;
  std::vector<ScoredToken> scores;
  std::vector<TraceSpan> trace;  // while tracing
};

}  // namespace ringfill
