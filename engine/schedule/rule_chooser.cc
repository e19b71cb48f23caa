#include "engine/schedule/rule_chooser.h"

#include <algorithm>

namespace ringfill {

Way RuleChooser::Choose(const PrefillChunk& chunk, const PlacementSpec& placement,
                        int ranks) const {
  const auto tokens = static_cast<int64_t>(chunk.tokens.size());
  if (tokens <= std::min(replicated_tokens_, kMaxReplicatedTokens)) {
    return {TokenMode::kReplicated, RingStrategy::kPassKv};
  }
  const int64_t period = int64_t{2} * ranks * placement.stripe_tokens;
  const bool home = ranks == 1 || tokens >= kPeriodsAtHome * period;
  return {home ? TokenMode::kHome : TokenMode::kDealt, RingStrategy::kPassKv};
}

Way ForcedChooser::Choose(const PrefillChunk& chunk, const PlacementSpec& placement,
                          int ranks) const {
  Way way;
  if (!mode_.has_value() || !strategy_.has_value()) {
    way = otherwise_.Choose(chunk, placement, ranks);
  }
  return {mode_.value_or(way.mode), strategy_.value_or(way.strategy)};
}

}  // namespace ringfill
