// What a plan log says, and its bytes: little-endian, bounded, canonical (bytes that decode encode
// to themselves). plan_log.h has the file around them.
//
// A log is of one life of a daemon, from its first step on: pages are empty at its start, and each
// plan stands before the results that the ranks gave for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/schedule/step_plan.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

inline constexpr size_t kMaxLogHeaderBytes = size_t{1} << 16;
inline constexpr size_t kMaxLogRecordBytes = size_t{1} << 30;
inline constexpr int kMaxLogRanks = 64;

// What the steps were computed with; a replay needs the same.
struct PlanLogHeader {
  std::string model_name;
  Sha256Digest model_digest{};
  KvGeometry geometry;
  int64_t vocab = 0;
  int64_t max_positions = 0;  // of a sequence
  int64_t pages_per_rank = 0;
  int64_t gather_bytes = 0;
  int32_t ranks = 1;  // at the start
  DType dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  CpuIsa isa = CpuIsa::kBaseline;
  bool strict = false;
};

// One row of logits, short.
struct LogitsRecord {
  static constexpr int kSamples = 8;
  uint64_t digest = 0;  // of all bits
  TokenId best = 0;     // the first one of the largest
  float best_logit = 0;
  std::array<float, kSamples> samples{};  // of tokens i * vocab / kSamples
};

struct ScoreRecord {
  int32_t chunk = 0;
  int64_t position = 0;  // of the token that predicts
  float logprob = 0;     // natural, of the token after it
};

struct PlanRecord {
  StepPlan plan;
};

// Of the plan before it.
struct OutcomeRecord {
  uint64_t step = 0;
  bool failed = false;              // nothing else is known then
  uint64_t stopped = 0;             // bit c: chunk c was cancelled on the way and has no results
  std::vector<LogitsRecord> rows;   // chunks that want logits and were not stopped, then decodes
  std::vector<ScoreRecord> scores;  // by chunk and position
};

// The ring formed anew; `from` as in Workers::Reform.
struct RingRecord {
  uint64_t epoch = 0;
  std::vector<int32_t> from;
};

// Nothing follows.
enum class PlanLogEnd : uint8_t { kStopped, kFull, kBehind, kFailed };
inline constexpr int kPlanLogEnds = 4;
struct EndRecord {
  PlanLogEnd why = PlanLogEnd::kStopped;
};
// "the daemon was stopped".
std::string_view PlanLogEndText(PlanLogEnd why);

// In the order of their numbers in the file, which start at 1.
using LogRecord = std::variant<PlanRecord, OutcomeRecord, RingRecord, EndRecord>;

std::string EncodeLogHeader(const PlanLogHeader& header);
// DATA_LOSS naming the field when the bytes are no header.
absl::StatusOr<PlanLogHeader> DecodeLogHeader(std::string_view bytes);

std::string EncodeLogRecord(const LogRecord& record);
// Of a plan that is encoded already (EncodePlan).
std::string EncodePlanRecord(std::string_view encoded_plan);
// DATA_LOSS naming the field; INVALID_ARGUMENT for a plan of another version. A decoded plan may
// ask for anything: CheckPlan (schedule/plan_check.h) comes before it is executed.
absl::StatusOr<LogRecord> DecodeLogRecord(std::string_view bytes);

}  // namespace ringfill
