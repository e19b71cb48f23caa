// Which placement a sequence has, as a plain value that plans carry.
#pragma once

#include <vector>

namespace ringfill {

// Where the positions of a sequence lie: see placement.h.
struct PlacementSpec {
  int stripe_tokens = 0;
  std::vector<int> slot_map;  // [slots] ranks
  friend bool operator==(const PlacementSpec&, const PlacementSpec&) = default;
};

}  // namespace ringfill
