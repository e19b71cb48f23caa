// Ways chosen without a cost model: by rule, or as configuration says.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/schedule/way_chooser.h"

namespace ringfill {

// Replicated up to `replicated_tokens`; at home from four periods of 2 * ranks * stripe_tokens on,
// where homes balance; dealt between. Always pass-KV. With one rank, home and dealt are one.
class RuleChooser : public WayChooser {
 public:
  static constexpr int64_t kPeriodsAtHome = 4;

  explicit RuleChooser(int64_t replicated_tokens = 32) : replicated_tokens_(replicated_tokens) {}
  Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const override;

 private:
  const int64_t replicated_tokens_;
};

// What is set is forced, the rest is as `otherwise` chooses; it must outlive this.
class ForcedChooser : public WayChooser {
 public:
  ForcedChooser(std::optional<TokenMode> mode, std::optional<RingStrategy> strategy,
                const WayChooser& otherwise)
      : mode_(mode), strategy_(strategy), otherwise_(otherwise) {}
  Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const override;

 private:
  const std::optional<TokenMode> mode_;
  const std::optional<RingStrategy> strategy_;
  const WayChooser& otherwise_;
};

}  // namespace ringfill
