// Which rank owns which slot (see placement.h): the map of a new deployment, and how it changes
// when ranks are lost or join. Pure and deterministic; ranks are the dense numbers of an epoch.
#pragma once

#include <span>
#include <vector>

namespace ringfill {

// Slots a rank, on average, fixed when a deployment forms: finer and a plan gets longer, coarser
// and the survivors of a lost rank share its load less evenly.
inline constexpr int kSlotsPerRank = 4;

// The snake over equal ranks: 0..N-1, N-1..0, 0..N-1, N-1..0. REQUIRES: ranks >= 1.
std::vector<int> HealthySlotMap(int ranks);

// kSlotsPerRank * weights.size() slots, shared out in proportion to the ranks' weights by largest
// remainder (ties to lower ranks), each rank's slots spread evenly. Equal weights give the healthy
// map. A small weight may get no slot. REQUIRES: no weight negative, one positive.
std::vector<int> WeightedSlotMap(std::span<const double> weights);

// The map of the next epoch, in its ranks. from[r]: the rank of `map`'s epoch that is rank r now;
// -1: a newcomer. Slots of ranks that are gone are dealt, one by one, to the rank that is furthest
// below its share. Survivors keep what they have, except that newcomers take slots from those
// furthest above their share, as few as leave no rank a slot or more from where one move helps.
// With equal weights no two ranks differ by more than one slot if they did not before.
// `weights`: of the new ranks; empty: equal.
// REQUIRES: from not empty, its entries that are not -1 distinct and in map's ranks.
std::vector<int> RedealSlots(const std::vector<int>& map, std::span<const int> from,
                             std::span<const double> weights = {});

// [ranks] how many slots each rank owns.
std::vector<int> SlotCounts(const std::vector<int>& map, int ranks);

}  // namespace ringfill
