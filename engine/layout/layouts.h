// The layouts of a sequence over the ranks. The snake is the one to serve with; the others are the
// usual ones, for comparison, and are made of the same stripes and slots:
//
//   snake          stripes of `stripe_tokens` over the epoch's slots
//   contiguous     one run of positions a rank, L/N long
//   zigzag         two runs a rank, L/2N long: one from the front, its mirror image from the back
//   token stripes  the snake with stripes of one token
//
// Where ranks own unequally many slots, runs are as long as their share. Positions past the length
// that the layout was made for go on over the same slots.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/layout/placement_spec.h"

namespace ringfill {

enum class Layout : uint8_t { kSnake, kContiguous, kZigzag, kTokenStripes };
inline constexpr int kLayouts = 4;
std::string_view LayoutName(Layout layout);  // "token-stripes"
std::optional<Layout> ParseLayout(std::string_view name);

// `slot_map`: the epoch's. Stripes of contiguous and zigzag are rounded up to whole pages.
// `sequence_tokens`: L; the snake and token stripes do not depend on it.
PlacementSpec MakePlacement(Layout layout, const std::vector<int>& slot_map, int stripe_tokens,
                            int page_tokens, int64_t sequence_tokens);

}  // namespace ringfill
