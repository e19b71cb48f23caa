#include "engine/schedule/plan_check.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/layout/placement.h"

namespace ringfill {
namespace {

constexpr int kMaxStripeTokens = 1 << 30;

absl::Status Refuse(const std::string& field, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("plan: ", field, " ", why));
}

class Checker {
 public:
  Checker(const StepPlan& plan, const PlanLimits& limits) : plan_(plan), limits_(limits) {}

  absl::Status Run() {
    RF_RETURN_IF_ERROR(CheckSizes());
    RF_RETURN_IF_ERROR(CheckPlacements());
    for (size_t c = 0; c < plan_.chunks.size(); ++c) {
      RF_RETURN_IF_ERROR(CheckChunk(plan_.chunks[c], absl::StrCat("chunks[", c, "]")));
    }
    for (size_t d = 0; d < plan_.decodes.size(); ++d) {
      RF_RETURN_IF_ERROR(CheckDecode(plan_.decodes[d], absl::StrCat("decodes[", d, "]")));
    }
    RF_RETURN_IF_ERROR(CheckSharing());
    return CheckFreed();
  }

 private:
  // Are this rank's pages looked at?
  bool Wanted(int rank) const { return limits_.rank.value_or(rank) == rank; }

  absl::Status CheckSizes() const {
    if (plan_.ranks != limits_.ranks) {
      return Refuse("ranks", absl::StrCat("is ", plan_.ranks, ", the ring has ", limits_.ranks));
    }
    if (plan_.chunks.size() > kMaxChunksPerStep) {
      return Refuse("chunks", absl::StrCat("are ", plan_.chunks.size()));
    }
    if (plan_.decodes.size() > kMaxDecodesPerStep) {
      return Refuse("decodes", absl::StrCat("are ", plan_.decodes.size()));
    }
    if (plan_.placements.size() > plan_.chunks.size() + plan_.decodes.size()) {
      return Refuse("placements", "are more than the sequences");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlacements() {
    for (size_t i = 0; i < plan_.placements.size(); ++i) {
      const PlacementSpec& spec = plan_.placements[i];
      const std::string name = absl::StrCat("placements[", i, "]");
      if (spec.stripe_tokens < 1 || spec.stripe_tokens > kMaxStripeTokens) {
        return Refuse(name + ".stripe_tokens", absl::StrCat("is ", spec.stripe_tokens));
      }
      if (spec.slot_map.empty() || spec.slot_map.size() > kMaxSlots) {
        return Refuse(name + ".slot_map", absl::StrCat("has ", spec.slot_map.size(), " slots"));
      }
      for (const int rank : spec.slot_map) {
        if (rank < 0 || rank >= limits_.ranks) {
          return Refuse(name + ".slot_map", absl::StrCat("names rank ", rank));
        }
      }
      placements_.emplace_back(limits_.ranks, spec);
    }
    return absl::OkStatus();
  }

  absl::Status CheckTokens(std::span<const TokenId> tokens, const std::string& name) const {
    for (const TokenId token : tokens) {
      if (token < 0 || token >= limits_.vocab) {
        return Refuse(name, absl::StrCat("names token ", token, " of ", limits_.vocab));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSpans(const PrefillChunk& chunk, const std::string& name) const {
    if (chunk.spans.empty()) return Refuse(name + ".spans", "are none");
    int64_t last = 0, tokens = 0;
    for (const Span& span : chunk.spans) {
      if (span.begin < last || span.end <= span.begin || span.end > limits_.max_positions) {
        return Refuse(name + ".spans",
                      absl::StrCat("hold [", span.begin, ", ", span.end, ") after ", last));
      }
      last = span.end;
      tokens += span.size();
    }
    if (tokens != static_cast<int64_t>(chunk.tokens.size())) {
      return Refuse(name + ".tokens",
                    absl::StrCat("are ", chunk.tokens.size(), " for ", tokens, " positions"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckChunk(const PrefillChunk& chunk, const std::string& name) {
    RF_RETURN_IF_ERROR(CheckSequence(chunk.sequence, name));
    RF_RETURN_IF_ERROR(CheckSpans(chunk, name));
    RF_RETURN_IF_ERROR(CheckTokens(chunk.tokens, name + ".tokens"));
    RF_RETURN_IF_ERROR(CheckTokens(chunk.targets, name + ".targets"));
    const auto tokens = static_cast<int64_t>(chunk.tokens.size());
    if (static_cast<int>(chunk.mode) >= kTokenModes) return Refuse(name + ".mode", "is unknown");
    if (static_cast<int>(chunk.strategy) >= kRingStrategies) {
      return Refuse(name + ".strategy", "is unknown");
    }
    if (chunk.mode == TokenMode::kReplicated && (tokens > kMaxReplicatedTokens || chunk.score)) {
      return Refuse(name + ".mode", absl::StrCat("is replicated, for ", tokens, " tokens",
                                                 chunk.score ? " to be scored" : ""));
    }
    RF_RETURN_IF_ERROR(CheckTable(chunk.pages, chunk.placement, chunk.end(), name));
    if (chunk.strategy == RingStrategy::kOrdered &&
        placements_[static_cast<size_t>(chunk.placement)].stripe_tokens() % limits_.page_tokens !=
            0) {
      return Refuse(name + ".strategy", "is ordered, with stripes that are no whole pages");
    }
    const auto targets = static_cast<int64_t>(chunk.targets.size());
    if (chunk.score ? targets != tokens && targets != tokens - 1 : targets != 0) {
      return Refuse(name + ".targets", absl::StrCat("are ", targets, " for ", tokens, " tokens"));
    }
    return CheckDocuments(chunk, name + ".document_starts");
  }

  absl::Status CheckDocuments(const PrefillChunk& chunk, const std::string& name) const {
    const std::vector<int64_t>& starts = chunk.document_starts;
    if (starts.size() > chunk.tokens.size()) {
      return Refuse(name,
                    absl::StrCat("are ", starts.size(), " for ", chunk.tokens.size(), " tokens"));
    }
    int64_t last = -1;
    for (const int64_t start : starts) {
      if (start <= last || start >= chunk.end()) {
        return Refuse(name,
                      absl::StrCat("name ", start, " after ", last, " and before ", chunk.end()));
      }
      last = start;
    }
    return absl::OkStatus();
  }

  absl::Status CheckDecode(const DecodeToken& decode, const std::string& name) {
    RF_RETURN_IF_ERROR(CheckSequence(decode.sequence, name));
    if (decode.position < 0 || decode.position >= limits_.max_positions) {
      return Refuse(name + ".position", absl::StrCat("is ", decode.position));
    }
    if (decode.document_start < 0 || decode.document_start > decode.position) {
      return Refuse(name + ".document_start", absl::StrCat("is ", decode.document_start));
    }
    RF_RETURN_IF_ERROR(CheckTokens({&decode.token, 1}, name + ".token"));
    return CheckTable(decode.pages, decode.placement, decode.position + 1, name);
  }

  absl::Status CheckSequence(SequenceId id, const std::string& name) {
    if (sequences_.insert(id).second) return absl::OkStatus();
    return Refuse(name + ".sequence", absl::StrCat(id, " has two entries"));
  }

  absl::Status CheckPages(const std::vector<PageId>& pages, const std::string& name) const {
    for (const PageId page : pages) {
      if (int64_t{page} >= limits_.pages_per_rank) {
        return Refuse(name, absl::StrCat("name page ", page, " of ", limits_.pages_per_rank));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTable(const BlockTable& table, int placement, int64_t tokens,
                          const std::string& name) const {
    if (placement < 0 || placement >= static_cast<int>(placements_.size())) {
      return Refuse(name + ".placement", absl::StrCat("is ", placement));
    }
    if (static_cast<int>(table.size()) != limits_.ranks) {
      return Refuse(name + ".pages", absl::StrCat("are for ", table.size(), " ranks"));
    }
    for (int r = 0; r < limits_.ranks; ++r) {
      if (!Wanted(r)) continue;
      const std::vector<PageId>& pages = table[static_cast<size_t>(r)];
      const int64_t needed =
          placements_[static_cast<size_t>(placement)].PagesBefore(r, tokens, limits_.page_tokens);
      if (static_cast<int64_t>(pages.size()) < needed) {
        return Refuse(name + ".pages", absl::StrCat("are ", pages.size(), " on rank ", r, ", ",
                                                    needed, " are needed"));
      }
      RF_RETURN_IF_ERROR(CheckPages(pages, name + ".pages"));
    }
    return absl::OkStatus();
  }

  // What each page is used for on one rank.
  struct Uses {
    std::vector<bool> read, written;  // [pages]
  };

  absl::Status Use(Uses& uses, int rank, const BlockTable& table, int placement,
                   std::span<const Span> spans, const std::string& name) const {
    const Placement& place = placements_[static_cast<size_t>(placement)];
    const std::vector<PageId>& pages = table[static_cast<size_t>(rank)];
    std::vector<bool> writes(pages.size());
    for (const Span& span : spans) {
      const int64_t first = place.TokensBefore(rank, span.begin);
      const int64_t last = place.TokensBefore(rank, span.end);
      if (first == last) continue;
      for (int64_t i = first / limits_.page_tokens; i <= (last - 1) / limits_.page_tokens; ++i) {
        writes[static_cast<size_t>(i)] = true;
      }
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageId page = pages[i];
      if (uses.written[page] || (writes[i] && uses.read[page])) {
        return Refuse(name + ".pages", absl::StrCat("share page ", page, " of rank ", rank,
                                                    ", which the step writes"));
      }
      if (writes[i]) uses.written[page] = true;
      uses.read[page] = true;
    }
    return absl::OkStatus();
  }

  absl::Status CheckSharing() const {
    for (int r = 0; r < limits_.ranks; ++r) {
      if (!Wanted(r)) continue;
      const auto pages = static_cast<size_t>(limits_.pages_per_rank);
      Uses uses = {std::vector<bool>(pages), std::vector<bool>(pages)};
      for (size_t c = 0; c < plan_.chunks.size(); ++c) {
        const PrefillChunk& chunk = plan_.chunks[c];
        RF_RETURN_IF_ERROR(Use(uses, r, chunk.pages, chunk.placement, chunk.spans,
                               absl::StrCat("chunks[", c, "]")));
      }
      for (size_t d = 0; d < plan_.decodes.size(); ++d) {
        const DecodeToken& decode = plan_.decodes[d];
        const Span span = {decode.position, decode.position + 1};
        RF_RETURN_IF_ERROR(Use(uses, r, decode.pages, decode.placement, {&span, 1},
                               absl::StrCat("decodes[", d, "]")));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckFreed() const {
    if (plan_.freed.empty()) return absl::OkStatus();
    if (static_cast<int>(plan_.freed.size()) != limits_.ranks) {
      return Refuse("freed", absl::StrCat("is for ", plan_.freed.size(), " ranks"));
    }
    for (int r = 0; r < limits_.ranks; ++r) {
      if (Wanted(r)) RF_RETURN_IF_ERROR(CheckPages(plan_.freed[static_cast<size_t>(r)], "freed"));
    }
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const PlanLimits& limits_;
  std::vector<Placement> placements_;
  std::set<SequenceId> sequences_;
};

}  // namespace

absl::Status CheckPlan(const StepPlan& plan, const PlanLimits& limits) {
  return Checker(plan, limits).Run();
}

}  // namespace ringfill
