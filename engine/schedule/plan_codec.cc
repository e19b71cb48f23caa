#include "engine/schedule/plan_codec.h"

#include "absl/strings/str_cat.h"
#include "engine/schedule/byte_codec.h"

namespace ringfill {
namespace {

constexpr size_t kCountBytes = sizeof(uint32_t);
constexpr size_t kSpanBytes = 2 * sizeof(int64_t);
// Of the smallest one, all its lists empty.
constexpr size_t kPlacementBytes = sizeof(int32_t) + kCountBytes;
constexpr size_t kChunkBytes = sizeof(SequenceId) + 5 * kCountBytes + sizeof(int32_t) + 4;
constexpr size_t kDecodeBytes =
    sizeof(SequenceId) + 2 * sizeof(int64_t) + sizeof(TokenId) + sizeof(int32_t) + kCountBytes;

void PutTable(const BlockTable& table, ByteWriter& out) {
  out.PutEach(table, [](const std::vector<PageId>& pages, ByteWriter& o) { o.PutAll(pages); });
}

BlockTable GetTable(const char* field, ByteReader& in) {
  BlockTable table(in.GetCount(kCountBytes, field));
  for (std::vector<PageId>& pages : table) in.GetAll(field, pages);
  return table;
}

void PutSpan(const Span& span, ByteWriter& out) {
  out.Put(span.begin);
  out.Put(span.end);
}

Span GetSpan(ByteReader& in) {
  const auto begin = in.Get<int64_t>("chunk.spans");
  return {begin, in.Get<int64_t>("chunk.spans")};
}

void PutChunk(const PrefillChunk& chunk, ByteWriter& out) {
  out.Put(chunk.sequence);
  out.PutEach(chunk.spans, PutSpan);
  out.PutAll(chunk.tokens);
  out.Put(int32_t{chunk.placement});
  PutTable(chunk.pages, out);
  out.PutEnum(chunk.mode);
  out.PutEnum(chunk.strategy);
  out.PutBool(chunk.wants_logits);
  out.PutBool(chunk.score);
  out.PutAll(chunk.targets);
  out.PutAll(chunk.document_starts);
}

PrefillChunk GetChunk(ByteReader& in) {
  PrefillChunk chunk;
  chunk.sequence = in.Get<SequenceId>("chunk.sequence");
  in.GetEach("chunk.spans", kSpanBytes, chunk.spans, GetSpan);
  in.GetAll("chunk.tokens", chunk.tokens);
  chunk.placement = in.Get<int32_t>("chunk.placement");
  chunk.pages = GetTable("chunk.pages", in);
  chunk.mode = in.GetEnum<TokenMode>(kTokenModes, "chunk.mode");
  chunk.strategy = in.GetEnum<RingStrategy>(kRingStrategies, "chunk.strategy");
  chunk.wants_logits = in.GetBool("chunk.wants_logits");
  chunk.score = in.GetBool("chunk.score");
  in.GetAll("chunk.targets", chunk.targets);
  in.GetAll("chunk.document_starts", chunk.document_starts);
  return chunk;
}

void PutDecode(const DecodeToken& decode, ByteWriter& out) {
  out.Put(decode.sequence);
  out.Put(decode.position);
  out.Put(decode.token);
  out.Put(int32_t{decode.placement});
  PutTable(decode.pages, out);
  out.Put(decode.document_start);
}

DecodeToken GetDecode(ByteReader& in) {
  DecodeToken decode;
  decode.sequence = in.Get<SequenceId>("decode.sequence");
  decode.position = in.Get<int64_t>("decode.position");
  decode.token = in.Get<TokenId>("decode.token");
  decode.placement = in.Get<int32_t>("decode.placement");
  decode.pages = GetTable("decode.pages", in);
  decode.document_start = in.Get<int64_t>("decode.document_start");
  return decode;
}

void PutPlacement(const PlacementSpec& placement, ByteWriter& out) {
  out.Put(int32_t{placement.stripe_tokens});
  out.PutAll(placement.slot_map);
}

PlacementSpec GetPlacement(ByteReader& in) {
  PlacementSpec placement;
  placement.stripe_tokens = in.Get<int32_t>("placement.stripe_tokens");
  in.GetAll("placement.slot_map", placement.slot_map);
  return placement;
}

}  // namespace

std::string EncodePlan(const StepPlan& plan) {
  ByteWriter out;
  out.Put(kPlanMagic);
  out.Put(kPlanVersion);
  out.Put(plan.epoch);
  out.Put(plan.step);
  out.Put(int32_t{plan.ranks});
  out.PutEach(plan.placements, PutPlacement);
  out.PutEach(plan.chunks, PutChunk);
  out.PutEach(plan.decodes, PutDecode);
  PutTable(plan.freed, out);
  return out.Take();
}

absl::StatusOr<StepPlan> DecodePlan(std::string_view bytes) {
  if (bytes.size() > kMaxPlanBytes) {
    return absl::DataLossError(
        absl::StrCat("plan has ", bytes.size(), " bytes, at most ", kMaxPlanBytes, " are read"));
  }
  ByteReader in(bytes);
  if (in.Get<uint32_t>("magic") != kPlanMagic) in.Fail("magic", "is another");
  const auto version = in.Get<uint32_t>("version");
  if (in.ok() && version != kPlanVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("version of the plan is ", version, ", this program reads ", kPlanVersion));
  }
  StepPlan plan;
  plan.epoch = in.Get<uint64_t>("epoch");
  plan.step = in.Get<uint64_t>("step");
  plan.ranks = in.Get<int32_t>("ranks");
  in.GetEach("placements", kPlacementBytes, plan.placements, GetPlacement);
  in.GetEach("chunks", kChunkBytes, plan.chunks, GetChunk);
  in.GetEach("decodes", kDecodeBytes, plan.decodes, GetDecode);
  plan.freed = GetTable("freed", in);
  RF_RETURN_IF_ERROR(in.Finish());
  return plan;
}

}  // namespace ringfill
