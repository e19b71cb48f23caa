#include "engine/replay/plan_record.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "engine/schedule/byte_codec.h"
#include "engine/schedule/plan_codec.h"

namespace ringfill {
namespace {

constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kLogitsBytes =
    sizeof(uint64_t) + sizeof(TokenId) + (1 + LogitsRecord::kSamples) * sizeof(float);
constexpr size_t kScoreBytes = sizeof(int32_t) + sizeof(int64_t) + sizeof(float);
constexpr int64_t kMost = int64_t{1} << 50;  // of sizes and counts

enum class RecordType : uint8_t { kPlan = 1, kOutcome, kRing, kEnd };

// A number in [min, max], or an error of `in`.
template <typename T>
T GetBounded(ByteReader& in, const char* field, T min, T max) {
  const T value = in.Get<T>(field);
  if (in.ok() && (value < min || value > max)) {
    in.Fail(field, absl::StrCat("is ", value, ", outside ", min, " to ", max));
  }
  return value;
}

void PutLogits(const LogitsRecord& row, ByteWriter& out) {
  out.Put(row.digest);
  out.Put(row.best);
  out.Put(row.best_logit);
  for (const float sample : row.samples) out.Put(sample);
}

LogitsRecord GetLogits(ByteReader& in) {
  constexpr char kField[] = "outcome.rows";
  LogitsRecord row;
  row.digest = in.Get<uint64_t>(kField);
  row.best = in.Get<TokenId>(kField);
  row.best_logit = in.Get<float>(kField);
  for (float& sample : row.samples) sample = in.Get<float>(kField);
  return row;
}

void PutScore(const ScoreRecord& score, ByteWriter& out) {
  out.Put(score.chunk);
  out.Put(score.position);
  out.Put(score.logprob);
}

ScoreRecord GetScore(ByteReader& in) {
  constexpr char kField[] = "outcome.scores";
  ScoreRecord score;
  score.chunk = in.Get<int32_t>(kField);
  score.position = in.Get<int64_t>(kField);
  score.logprob = in.Get<float>(kField);
  return score;
}

void Put(const OutcomeRecord& record, ByteWriter& out) {
  out.PutEnum(RecordType::kOutcome);
  out.Put(record.step);
  out.PutBool(record.failed);
  out.Put(record.stopped);
  out.PutEach(record.rows, PutLogits);
  out.PutEach(record.scores, PutScore);
}

OutcomeRecord GetOutcome(ByteReader& in) {
  OutcomeRecord record;
  record.step = in.Get<uint64_t>("outcome.step");
  record.failed = in.GetBool("outcome.failed");
  record.stopped = in.Get<uint64_t>("outcome.stopped");
  in.GetEach("outcome.rows", kLogitsBytes, record.rows, GetLogits);
  in.GetEach("outcome.scores", kScoreBytes, record.scores, GetScore);
  return record;
}

void Put(const RingRecord& record, ByteWriter& out) {
  out.PutEnum(RecordType::kRing);
  out.Put(record.epoch);
  out.PutAll(record.from);
}

RingRecord GetRing(ByteReader& in) {
  RingRecord record;
  record.epoch = in.Get<uint64_t>("ring.epoch");
  in.GetAll("ring.from", record.from);
  return record;
}

absl::StatusOr<LogRecord> GetPlan(ByteReader& in) {
  const std::string bytes = in.GetText("plan");
  RF_RETURN_IF_ERROR(in.Finish());
  RF_ASSIGN_OR_RETURN(StepPlan plan, DecodePlan(bytes));
  return LogRecord(PlanRecord{std::move(plan)});
}

}  // namespace

std::string_view PlanLogEndText(PlanLogEnd why) {
  constexpr std::string_view kTexts[kPlanLogEnds] = {
      "the daemon was stopped",
      "the log reached debug.plan_log_max_bytes",
      "the disk was too slow for the log",
      "the log could not be written any more: its disk was full or failed, or files were limited",
  };
  return kTexts[static_cast<size_t>(why)];
}

std::string EncodeLogHeader(const PlanLogHeader& header) {
  ByteWriter out;
  out.PutText(std::string_view(header.model_name).substr(0, kMaxNameBytes));
  for (const std::byte b : header.model_digest) out.Put(static_cast<uint8_t>(b));
  out.Put(int32_t{header.geometry.layers});
  out.Put(int32_t{header.geometry.kv_heads});
  out.Put(int32_t{header.geometry.page_tokens});
  out.Put(static_cast<int64_t>(header.geometry.block_bytes));
  out.Put(header.vocab);
  out.Put(header.max_positions);
  out.Put(header.pages_per_rank);
  out.Put(header.gather_bytes);
  out.Put(header.ranks);
  out.PutEnum(header.dtype);
  out.PutEnum(header.kv_dtype);
  out.PutEnum(header.isa);
  out.PutBool(header.strict);
  return out.Take();
}

absl::StatusOr<PlanLogHeader> DecodeLogHeader(std::string_view bytes) {
  ByteReader in(bytes);
  PlanLogHeader header;
  header.model_name = in.GetText("model name");
  if (header.model_name.size() > kMaxNameBytes) in.Fail("model name", "is too long");
  for (std::byte& b : header.model_digest) b = std::byte{in.Get<uint8_t>("model digest")};
  header.geometry.layers = GetBounded<int32_t>(in, "geometry layers", 1, 1 << 20);
  header.geometry.kv_heads = GetBounded<int32_t>(in, "geometry heads", 1, 1 << 20);
  header.geometry.page_tokens = GetBounded<int32_t>(in, "geometry page tokens", 1, 1 << 20);
  header.geometry.block_bytes =
      static_cast<size_t>(GetBounded<int64_t>(in, "geometry block bytes", 1, kMost));
  header.vocab = GetBounded<int64_t>(in, "vocabulary", 1, int64_t{1} << 31);
  header.max_positions = GetBounded<int64_t>(in, "context", 1, int64_t{1} << 40);
  header.pages_per_rank = GetBounded<int64_t>(in, "pages", 1, int64_t{1} << 31);
  header.gather_bytes = GetBounded<int64_t>(in, "gather bytes", 0, kMost);
  header.ranks = GetBounded<int32_t>(in, "ranks", 1, kMaxLogRanks);
  header.dtype = in.GetEnum<DType>(kDTypes, "compute type");
  header.kv_dtype = in.GetEnum<DType>(kDTypes, "KV type");
  header.isa = in.GetEnum<CpuIsa>(kCpuIsas, "instruction set");
  header.strict = in.GetBool("strict");
  RF_RETURN_IF_ERROR(in.Finish());
  return header;
}

std::string EncodePlanRecord(std::string_view encoded_plan) {
  ByteWriter out;
  out.PutEnum(RecordType::kPlan);
  out.PutText(encoded_plan);
  return out.Take();
}

std::string EncodeLogRecord(const LogRecord& record) {
  return std::visit(
      [](const auto& r) {
        using T = std::decay_t<decltype(r)>;
        ByteWriter out;
        if constexpr (std::is_same_v<T, PlanRecord>) {
          return EncodePlanRecord(EncodePlan(r.plan));
        } else if constexpr (std::is_same_v<T, EndRecord>) {
          out.PutEnum(RecordType::kEnd);
          out.PutEnum(r.why);
        } else {
          Put(r, out);
        }
        return out.Take();
      },
      record);
}

absl::StatusOr<LogRecord> DecodeLogRecord(std::string_view bytes) {
  ByteReader in(bytes);
  const auto type = in.Get<uint8_t>("record type");
  LogRecord record;
  switch (static_cast<RecordType>(type)) {
    case RecordType::kPlan:
      return GetPlan(in);
    case RecordType::kOutcome:
      record = GetOutcome(in);
      break;
    case RecordType::kRing:
      record = GetRing(in);
      break;
    case RecordType::kEnd:
      record = EndRecord{in.GetEnum<PlanLogEnd>(kPlanLogEnds, "end")};
      break;
    default:
      in.Fail("record type", absl::StrCat("is ", type));
  }
  RF_RETURN_IF_ERROR(in.Finish());
  return record;
}

}  // namespace ringfill
