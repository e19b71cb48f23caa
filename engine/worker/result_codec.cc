#include "engine/worker/result_codec.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/schedule/byte_codec.h"

namespace ringfill {
namespace {

constexpr size_t kScoreBytes = sizeof(int32_t) + sizeof(int64_t) + sizeof(float);
constexpr size_t kFaultBytes = 3 * sizeof(int32_t);
constexpr size_t kTraceBytes = 3 + 2 * sizeof(int32_t) + 3 * sizeof(int64_t);

int64_t Nanoseconds(Instant instant) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(instant.time_since_epoch()).count();
}

Instant FromNanoseconds(int64_t ns) {
  return Instant(std::chrono::duration_cast<Duration>(std::chrono::nanoseconds(ns)));
}

void PutTrace(const TraceSpan& span, ByteWriter& out) {
  out.PutEnum(span.label.kind);
  out.Put(int32_t{span.label.layer});
  out.Put(int32_t{span.label.round});
  out.PutEnum(span.label.strategy);
  out.Put(span.label.bytes);
  out.PutEnum(span.lane);
  out.Put(Nanoseconds(span.begin));
  out.Put(Nanoseconds(span.end));
}

TraceSpan GetTrace(ByteReader& in) {
  TraceSpan span;
  span.label.kind = in.GetEnum<OpKind>(kOpKinds, "trace.kind");
  span.label.layer = in.Get<int32_t>("trace.layer");
  span.label.round = in.Get<int32_t>("trace.round");
  span.label.strategy = in.GetEnum<RingStrategy>(kRingStrategies, "trace.strategy");
  span.label.bytes = in.Get<int64_t>("trace.bytes");
  span.lane = in.GetEnum<TraceLane>(kTraceLanes, "trace.lane");
  span.begin = FromNanoseconds(in.Get<int64_t>("trace.begin"));
  span.end = FromNanoseconds(in.Get<int64_t>("trace.end"));
  return span;
}

void PutTimes(const RankStepResult& result, ByteWriter& out) {
  out.Put(result.prefill_busy_s);
  out.Put(result.prefill_wait_s);
  out.Put(result.decode_busy_s);
  out.Put(result.decode_wait_s);
  out.Put(result.ring_bytes);
  out.Put(result.transfer_s);
  out.PutAll(result.round_seconds);
  out.Put(result.work.product_rows);
  out.Put(result.work.attention_pairs);
  out.Put(result.work.merged_states);
  out.Put(result.work.empty_states);
  for (const int64_t rounds : result.comm.rounds) out.Put(rounds);
  out.Put(result.comm.gather_bytes);
  for (const int64_t count : result.comm.gather_times) out.Put(count);
  out.Put(result.comm.gather_s);
  for (const int64_t bytes : result.memory) out.Put(bytes);
}

void GetTimes(ByteReader& in, RankStepResult& result) {
  result.prefill_busy_s = in.Get<double>("prefill_busy_s");
  result.prefill_wait_s = in.Get<double>("prefill_wait_s");
  result.decode_busy_s = in.Get<double>("decode_busy_s");
  result.decode_wait_s = in.Get<double>("decode_wait_s");
  result.ring_bytes = in.Get<int64_t>("ring_bytes");
  result.transfer_s = in.Get<double>("transfer_s");
  in.GetAll("round_seconds", result.round_seconds);
  result.work.product_rows = in.Get<int64_t>("work.product_rows");
  result.work.attention_pairs = in.Get<int64_t>("work.attention_pairs");
  result.work.merged_states = in.Get<int64_t>("work.merged_states");
  result.work.empty_states = in.Get<int64_t>("work.empty_states");
  for (int64_t& rounds : result.comm.rounds) rounds = in.Get<int64_t>("comm.rounds");
  result.comm.gather_bytes = in.Get<int64_t>("comm.gather_bytes");
  for (int64_t& count : result.comm.gather_times) count = in.Get<int64_t>("comm.gather_times");
  result.comm.gather_s = in.Get<double>("comm.gather_s");
  for (int64_t& bytes : result.memory) bytes = in.Get<int64_t>("memory");
}

absl::Status Refuse(const std::string& field, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("result: ", field, " ", why));
}

}  // namespace

std::string EncodeResult(const RankStepResult& result) {
  ByteWriter out;
  out.Put(kResultMagic);
  out.Put(kResultVersion);
  out.PutStatus(result.status, kMaxResultMessageBytes);
  PutTimes(result, out);
  out.Put(result.stopped_mask);
  out.PutCount(result.faults.size());
  for (const ValueFault& fault : result.faults) {
    out.Put(int32_t{fault.entry});
    out.Put(int32_t{fault.layer});
    out.Put(int32_t{fault.round});
  }
  out.Put(result.vocab_begin);
  out.Put(result.vocab_end);
  out.PutAll(result.logits);
  out.PutCount(result.scores.size());
  for (const ScoredToken& score : result.scores) {
    out.Put(int32_t{score.chunk});
    out.Put(score.position);
    out.Put(score.logprob);
  }
  out.PutCount(result.trace.size());
  for (const TraceSpan& span : result.trace) PutTrace(span, out);
  return out.Take();
}

absl::StatusOr<RankStepResult> DecodeResult(std::string_view bytes) {
  if (bytes.size() > kMaxResultBytes) {
    return absl::DataLossError(absl::StrCat("result has ", bytes.size(), " bytes, at most ",
                                            kMaxResultBytes, " are read"));
  }
  ByteReader in(bytes);
  if (in.Get<uint32_t>("magic") != kResultMagic) in.Fail("magic", "is another");
  const auto version = in.Get<uint32_t>("version");
  if (in.ok() && version != kResultVersion) {
    return absl::InvalidArgumentError(absl::StrCat("version of the result is ", version,
                                                   ", this program reads ", kResultVersion));
  }
  RankStepResult result;
  result.status = in.GetStatus(kMaxResultMessageBytes, "status");
  GetTimes(in, result);
  result.stopped_mask = in.Get<uint64_t>("stopped_mask");
  result.faults.resize(in.GetCount(kFaultBytes, "faults"));
  for (ValueFault& fault : result.faults) {
    fault.entry = in.Get<int32_t>("fault.entry");
    fault.layer = in.Get<int32_t>("fault.layer");
    fault.round = in.Get<int32_t>("fault.round");
  }
  result.vocab_begin = in.Get<int64_t>("vocab_begin");
  result.vocab_end = in.Get<int64_t>("vocab_end");
  in.GetAll("logits", result.logits);
  result.scores.resize(in.GetCount(kScoreBytes, "scores"));
  for (ScoredToken& score : result.scores) {
    score.chunk = in.Get<int32_t>("score.chunk");
    score.position = in.Get<int64_t>("score.position");
    score.logprob = in.Get<float>("score.logprob");
  }
  const size_t spans = in.GetCount(kTraceBytes, "trace");
  for (size_t i = 0; i < spans && in.ok(); ++i) result.trace.push_back(GetTrace(in));
  RF_RETURN_IF_ERROR(in.Finish());
  return result;
}

absl::Status CheckResult(const RankStepResult& result, const StepPlan& plan, int64_t vocab) {
  const auto chunks = static_cast<int>(plan.chunks.size());
  const auto decodes = static_cast<int>(plan.decodes.size());
  const auto in_plan = [&](int chunk) { return chunk >= 0 && chunk < chunks; };
  for (const ValueFault& fault : result.faults) {
    if (fault.entry < 0 || fault.entry >= chunks + decodes)
      return Refuse("fault.entry", absl::StrCat("is ", fault.entry));
  }
  for (const ScoredToken& score : result.scores) {
    if (!in_plan(score.chunk)) return Refuse("score.chunk", absl::StrCat("is ", score.chunk));
    const PrefillChunk& chunk = plan.chunks[static_cast<size_t>(score.chunk)];
    // A prompt's last position has no target.
    const auto end = chunk.end() - static_cast<int64_t>(chunk.tokens.size() - chunk.targets.size());
    if (!chunk.score || score.position < chunk.begin() || score.position >= end) {
      return Refuse("score.position", absl::StrCat("is ", score.position));
    }
  }
  if (chunks < kMaxChunksPerStep && (result.stopped_mask >> chunks) != 0) {
    return Refuse("stopped_mask", absl::StrCat("is ", result.stopped_mask));
  }
  if (result.vocab_begin < 0 || result.vocab_end < result.vocab_begin || result.vocab_end > vocab) {
    return Refuse("vocab_begin", absl::StrCat("to vocab_end are [", result.vocab_begin, ", ",
                                              result.vocab_end, ") of ", vocab));
  }
  auto rows = static_cast<int64_t>(plan.decodes.size());
  for (int c = 0; c < chunks; ++c) {
    const bool stopped = (result.stopped_mask >> c) & 1;
    rows += plan.chunks[static_cast<size_t>(c)].wants_logits && !stopped ? 1 : 0;
  }
  const int64_t logits = rows * (result.vocab_end - result.vocab_begin);
  if (result.status.ok() && static_cast<int64_t>(result.logits.size()) != logits) {
    return Refuse("logits",
                  absl::StrCat("are ", result.logits.size(), " floats for ", rows, " rows"));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
