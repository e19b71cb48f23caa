#include "engine/worker/check_plan.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

// Keeps sums and products of positions far from the bounds of their type.
constexpr int64_t kMaxPosition = int64_t{1} << 40;

size_t Index(int64_t i) { return static_cast<size_t>(i); }

absl::Status Refuse(const std::string& what) {
  return absl::InvalidArgumentError("step plan refused: " + what);
}

bool IsToken(TokenId id, const RankOptions& options) { return id >= 0 && id < options.model.vocab; }

absl::Status CheckTable(const StepPlan& plan, int placement, const BlockTable& table) {
  if (placement < 0 || Index(placement) >= plan.placements.size()) {
    return Refuse(absl::StrCat("no placement ", placement));
  }
  if (table.size() != Index(plan.ranks)) {
    return Refuse(absl::StrCat("a block table of ", table.size(), " ranks"));
  }
  return absl::OkStatus();
}

absl::Status CheckChunk(const PrefillChunk& chunk, const StepPlan& plan,
                        const RankOptions& options) {
  int64_t tokens = 0;
  int64_t end = 0;
  for (const Span& span : chunk.spans) {
    if (span.begin < end || span.end <= span.begin || span.end > kMaxPosition) {
      return Refuse("bad spans");
    }
    tokens += span.size();
    end = span.end;
  }
  if (tokens == 0 || tokens != static_cast<int64_t>(chunk.tokens.size())) {
    return Refuse(absl::StrCat(chunk.tokens.size(), " tokens for spans of ", tokens));
  }
  for (const std::vector<TokenId>* ids : {&chunk.tokens, &chunk.targets}) {
    for (const TokenId id : *ids) {
      if (!IsToken(id, options)) return Refuse(absl::StrCat("no token ", id));
    }
  }
  RF_RETURN_IF_ERROR(CheckTable(plan, chunk.placement, chunk.pages));
  if (chunk.mode == TokenMode::kReplicated) {
    return chunk.score ? Refuse("a replicated chunk to score") : absl::OkStatus();
  }
  if (chunk.strategy == RingStrategy::kOrdered &&
      plan.placements[Index(chunk.placement)].stripe_tokens % options.geometry.page_tokens != 0) {
    return Refuse("position order needs stripes of whole pages");
  }
  return absl::OkStatus();
}

// Of one sequence, whose positions end at `end`.
absl::Status CheckSequencePages(Rank& rank, int placement, int64_t end, const BlockTable& table) {
  const std::vector<PageId>& own = table[Index(rank.index())];
  const int64_t tokens = rank.placements()[Index(placement)]->TokensBefore(rank.index(), end);
  if (static_cast<int64_t>(own.size()) * rank.geometry().page_tokens < tokens) {
    return Refuse(absl::StrCat(own.size(), " pages for ", tokens, " tokens"));
  }
  for (const PageId page : own) {
    if (page >= rank.device().pages()) return Refuse(absl::StrCat("no page ", page));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const StepPlan& plan, const RankOptions& options, int ranks) {
  if (plan.ranks != ranks) {
    return Refuse(absl::StrCat("for ", plan.ranks, " ranks, but there are ", ranks));
  }
  if (plan.chunks.size() > Index(kMaxChunksPerStep)) {
    return Refuse(absl::StrCat(plan.chunks.size(), " chunks"));
  }
  for (const PlacementSpec& spec : plan.placements) {
    const bool ours = std::all_of(spec.slot_map.begin(), spec.slot_map.end(),
                                  [ranks](int r) { return r >= 0 && r < ranks; });
    if (spec.stripe_tokens < 1 || spec.slot_map.empty() || !ours) return Refuse("a bad placement");
  }
  for (const PrefillChunk& chunk : plan.chunks) {
    RF_RETURN_IF_ERROR(CheckChunk(chunk, plan, options));
  }
  for (const DecodeToken& decode : plan.decodes) {
    if (!IsToken(decode.token, options)) return Refuse(absl::StrCat("no token ", decode.token));
    if (decode.position < 0 || decode.position >= kMaxPosition) return Refuse("a bad position");
    RF_RETURN_IF_ERROR(CheckTable(plan, decode.placement, decode.pages));
  }
  if (!plan.freed.empty() && plan.freed.size() != Index(ranks)) {
    return Refuse(absl::StrCat("freed pages of ", plan.freed.size(), " ranks"));
  }
  return absl::OkStatus();
}

absl::Status CheckPages(const StepPlan& plan, Rank& rank) {
  for (const PrefillChunk& chunk : plan.chunks) {
    RF_RETURN_IF_ERROR(CheckSequencePages(rank, chunk.placement, chunk.end(), chunk.pages));
  }
  for (const DecodeToken& decode : plan.decodes) {
    RF_RETURN_IF_ERROR(
        CheckSequencePages(rank, decode.placement, decode.position + 1, decode.pages));
  }
  if (plan.freed.empty()) return absl::OkStatus();
  for (const PageId page : plan.freed[Index(rank.index())]) {
    if (page >= rank.device().pages()) return Refuse(absl::StrCat("no page ", page));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
