#include "engine/cost/cost_chooser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace ringfill {
namespace {

// An epoch has one placement, or one a request where the config says so.
constexpr size_t kMaxKnown = 64;

}  // namespace

std::shared_ptr<const Placement> CostChooser::PlacementOf(const PlacementSpec& spec,
                                                          int ranks) const {
  MutexLock lock(&mutex_);
  for (const Known& known : known_) {
    if (known.spec == spec && known.placement->ranks() == ranks) return known.placement;
  }
  if (known_.size() >= kMaxKnown) known_.clear();
  known_.push_back(
      {spec, std::make_shared<const Placement>(ranks, spec.stripe_tokens, spec.slot_map)});
  return known_.back().placement;
}

CostChooser::Explanation CostChooser::Explain(const PrefillChunk& chunk,
                                              const PlacementSpec& placement, int ranks) const {
  RF_CHECK(ranks == model_.ranks());
  Explanation out;
  out.options = model_.PredictAll(chunk, *PlacementOf(placement, ranks));
  out.ranks = ranks;
  out.begin = chunk.begin();
  for (const Span& span : chunk.spans) out.tokens += span.size();
  double cheapest = out.options.front().seconds;
  for (const Prediction& option : out.options) cheapest = std::min(cheapest, option.seconds);
  for (const Prediction& option : out.options) {
    if (option.seconds > cheapest * (1 + kTieShare)) continue;
    out.chosen = option.way;
    break;
  }
  return out;
}

Prediction CostChooser::Predict(const PrefillChunk& chunk, const PlacementSpec& placement,
                                int ranks) const {
  RF_CHECK(ranks == model_.ranks());
  return model_.Predict(chunk, *PlacementOf(placement, ranks), {chunk.mode, chunk.strategy});
}

Way CostChooser::Choose(const PrefillChunk& chunk, const PlacementSpec& placement,
                        int ranks) const {
  return Explain(chunk, placement, ranks).chosen;
}

std::string CostChooser::Explanation::ToString() const {
  std::string out = absl::StrCat(tokens, " new tokens at ", begin, " over ", ranks, " ranks:");
  const char* separator = " ";
  for (const Prediction& option : options) {
    absl::StrAppendFormat(&out, "%s%s%s %.6g s", separator, option.way == chosen ? "*" : "",
                          WayName(option.way), option.seconds);
    separator = ", ";
  }
  return out;
}

}  // namespace ringfill
