#include "engine/layout/layouts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "engine/layout/slot_map.h"

namespace ringfill {
namespace {

constexpr std::array<std::string_view, kLayouts> kNames = {"snake", "contiguous", "zigzag",
                                                           "token-stripes"};
constexpr int64_t kMaxStripeTokens = int64_t{1} << 30;

// The map's slots put in order of rank, in as few as keep the ranks' shares.
std::vector<int> Grouped(const std::vector<int>& slot_map) {
  const int ranks = *std::max_element(slot_map.begin(), slot_map.end()) + 1;
  const std::vector<int> counts = SlotCounts(slot_map, ranks);
  const int divisor =
      std::accumulate(counts.begin(), counts.end(), 0, [](int a, int b) { return std::gcd(a, b); });
  std::vector<int> grouped;
  for (int r = 0; r < ranks; ++r) grouped.insert(grouped.end(), counts[r] / divisor, r);
  return grouped;
}

// `tokens` over `parts` stripes of whole pages.
int StripeFor(int64_t tokens, int64_t parts, int page_tokens) {
  const int64_t even = (tokens + parts - 1) / parts;
  const int64_t pages = std::max<int64_t>(1, (even + page_tokens - 1) / page_tokens);
  return static_cast<int>(
      std::min(pages * page_tokens, kMaxStripeTokens / page_tokens * page_tokens));
}

}  // namespace

std::string_view LayoutName(Layout layout) { return kNames[static_cast<size_t>(layout)]; }

std::optional<Layout> ParseLayout(std::string_view name) {
  for (int i = 0; i < kLayouts; ++i) {
    if (kNames[i] == name) return static_cast<Layout>(i);
  }
  return std::nullopt;
}

PlacementSpec MakePlacement(Layout layout, const std::vector<int>& slot_map, int stripe_tokens,
                            int page_tokens, int64_t sequence_tokens) {
  RF_CHECK(!slot_map.empty() && stripe_tokens >= 1 && page_tokens >= 1 && sequence_tokens >= 0);
  switch (layout) {
    case Layout::kSnake:
      return {stripe_tokens, slot_map};
    case Layout::kTokenStripes:
      return {1, slot_map};
    case Layout::kContiguous:
    case Layout::kZigzag: {
      std::vector<int> grouped = Grouped(slot_map);
      const auto runs = static_cast<int64_t>(grouped.size()) * (layout == Layout::kZigzag ? 2 : 1);
      return {StripeFor(sequence_tokens, runs, page_tokens), std::move(grouped)};
    }
  }
  RF_CHECK(false);
  return {};
}

}  // namespace ringfill
