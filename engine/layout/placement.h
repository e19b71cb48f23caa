// Where a sequence's tokens live: stripes of `stripe_tokens` tokens fall into slots as a snake, and
// a slot map says which rank owns a slot. Placement depends on the absolute position and the map
// only, so a token's KV is found again without a directory.
//
//   stripe p = position / stripe_tokens
//   k = p mod 2V;  slot = k < V ? k : 2V-1-k          V = slots
//   rank = slot_map[slot]
//
// The healthy map of N ranks has V = 4N slots, dealt as a snake over the ranks (0..N-1, N-1..0,
// ...), which makes stripes fall 0,1,..,N-1,N-1,..,1,0,0,1,... Each rank keeps its stripes densely,
// in order: local stripe i of a rank holds its local tokens [i*stripe_tokens, (i+1)*stripe_tokens).
//
// Source of the idea: zigzag context parallelism balances causal work by pairing a front chunk with
// a back chunk; the snake does so for every 2N stripes, whatever the length.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/layout/placement_spec.h"

namespace ringfill {

// Immutable after construction; thread-safe; every query takes constant time.
class Placement {
 public:
  // The healthy snake. REQUIRES: ranks >= 1, stripe_tokens >= 1.
  Placement(int ranks, int stripe_tokens);
  // Any map from slot to rank. REQUIRES: entries in [0, ranks); a rank may own no slot.
  Placement(int ranks, int stripe_tokens, std::vector<int> slot_map)
      : Placement(ranks, PlacementSpec{stripe_tokens, std::move(slot_map)}) {}
  Placement(int ranks, PlacementSpec spec);

  int ranks() const { return ranks_; }
  const PlacementSpec& spec() const { return spec_; }
  int stripe_tokens() const { return spec_.stripe_tokens; }
  int slots() const { return static_cast<int>(spec_.slot_map.size()); }
  const std::vector<int>& slot_map() const { return spec_.slot_map; }

  int SlotOfStripe(int64_t stripe) const;
  int RankOfStripe(int64_t stripe) const;
  // The rank that keeps `position`.
  int Home(int64_t position) const { return RankOfStripe(position / stripe_tokens()); }

  // How many stripes p' < stripe belong to `rank`.
  int64_t StripesBefore(int rank, int64_t stripe) const;
  // How many positions x < position belong to `rank`. Also the visible KV prefix on `rank` of a
  // causal query at position - 1.
  int64_t TokensBefore(int rank, int64_t position) const;
  // How many pages of `page_tokens` tokens hold them.
  int64_t PagesBefore(int rank, int64_t position, int page_tokens) const {
    return (TokensBefore(rank, position) + page_tokens - 1) / page_tokens;
  }
  // Index of `position` among its home's tokens: TokensBefore(Home(position), position).
  int64_t LocalToken(int64_t position) const;
  // Inverse: the stripe that is number `local_stripe` of `rank`.
  // REQUIRES: the rank owns at least one slot.
  int64_t StripeAt(int rank, int64_t local_stripe) const;
  // The position of local token `local_token` of `rank`.
  int64_t PositionAt(int rank, int64_t local_token) const;

 private:
  int ranks_;
  PlacementSpec spec_;
  std::vector<int> period_rank_;           // [2 * slots] rank of stripe k of a period
  std::vector<std::vector<int>> before_;   // [ranks][2 * slots + 1] stripes of the rank before k
  std::vector<std::vector<int>> stripes_;  // [ranks] the rank's stripes of a period, ascending
};

}  // namespace ringfill
