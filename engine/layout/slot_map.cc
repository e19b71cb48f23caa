#include "engine/layout/slot_map.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr int kNobody = -1;

// [ranks] slots by weight, not rounded.
std::vector<double> Quotas(std::span<const double> weights, size_t slots) {
  double sum = 0;
  for (const double w : weights) {
    RF_CHECK(w >= 0 && std::isfinite(w));
    sum += w;
  }
  RF_CHECK(sum > 0 && std::isfinite(sum));
  std::vector<double> quotas;
  for (const double w : weights) quotas.push_back(w / sum * static_cast<double>(slots));
  return quotas;
}

std::vector<int> LargestRemainder(const std::vector<double>& quotas, int slots) {
  const size_t ranks = quotas.size();
  std::vector<int> counts(ranks);
  std::vector<size_t> order(ranks);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t r = 0; r < ranks; ++r) counts[r] = static_cast<int>(quotas[r]);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return quotas[a] - counts[a] > quotas[b] - counts[b];
  });
  int left = slots - std::accumulate(counts.begin(), counts.end(), 0);
  for (size_t i = 0; left > 0; i = (i + 1) % ranks, --left) ++counts[order[i]];
  return counts;
}

// Distance from `slot` to the nearest other one of `rank`; the number of slots when it has none.
int DistanceTo(const std::vector<int>& map, int slot, int rank) {
  const int slots = static_cast<int>(map.size());
  int nearest = slots;
  for (int s = 0; s < slots; ++s) {
    if (s != slot && map[s] == rank) nearest = std::min(nearest, std::abs(s - slot));
  }
  return nearest;
}

// A new epoch's map while it is being dealt.
class Deal {
 public:
  Deal(std::vector<int> map, std::vector<double> quotas)
      : map_(std::move(map)),
        quotas_(std::move(quotas)),
        counts_(SlotCounts(map_, static_cast<int>(quotas_.size()))) {}

  void GiveFreeSlots() {
    for (int slot = 0; slot < static_cast<int>(map_.size()); ++slot) {
      if (map_[slot] != kNobody) continue;
      Give(slot, Neediest(slot));
    }
  }

  // Moves slots to the neediest while that brings both ranks nearer to their shares.
  void Even() {
    for (;;) {
      const int to = Neediest(kNobody);
      const auto above = [this](int r) { return counts_[r] - quotas_[r]; };
      int donor = 0;
      for (int r = 1; r < static_cast<int>(quotas_.size()); ++r) {
        if (above(r) > above(donor)) donor = r;
      }
      if (above(donor) - above(to) <= 1 + kRounding) return;
      Give(SlotToMove(donor, to), to);
    }
  }

  std::vector<int> Take() { return std::move(map_); }

 private:
  static constexpr double kRounding = 1e-9;

  void Give(int slot, int rank) {
    if (map_[slot] != kNobody) --counts_[map_[slot]];
    map_[slot] = rank;
    ++counts_[rank];
  }

  // The rank furthest below its share; of equals, the one whose slots are furthest from `slot`.
  int Neediest(int slot) const {
    int best = 0;
    for (int r = 1; r < static_cast<int>(quotas_.size()); ++r) {
      const double more = (quotas_[r] - counts_[r]) - (quotas_[best] - counts_[best]);
      if (more < -kRounding) continue;
      const bool spreads =
          slot != kNobody && DistanceTo(map_, slot, r) > DistanceTo(map_, slot, best);
      if (more > kRounding || spreads) best = r;
    }
    return best;
  }

  // Far from the receiver's others and close to another of the donor's.
  int SlotToMove(int donor, int to) const {
    int best = kNobody;
    std::pair<int, int> best_score;
    for (int slot = 0; slot < static_cast<int>(map_.size()); ++slot) {
      if (map_[slot] != donor) continue;
      const std::pair score = {DistanceTo(map_, slot, to), -DistanceTo(map_, slot, donor)};
      if (best != kNobody && score <= best_score) continue;
      best = slot;
      best_score = score;
    }
    return best;
  }

  std::vector<int> map_;        // [slots]
  std::vector<double> quotas_;  // [ranks]
  std::vector<int> counts_;     // [ranks]
};

}  // namespace

std::vector<int> HealthySlotMap(int ranks) {
  RF_CHECK(ranks >= 1);
  std::vector<int> map(static_cast<size_t>(ranks) * kSlotsPerRank);
  for (int slot = 0; slot < static_cast<int>(map.size()); ++slot) {
    const int k = slot % (2 * ranks);
    map[slot] = k < ranks ? k : 2 * ranks - 1 - k;
  }
  return map;
}

std::vector<int> WeightedSlotMap(std::span<const double> weights) {
  const int slots = kSlotsPerRank * static_cast<int>(weights.size());
  const std::vector<int> counts =
      LargestRemainder(Quotas(weights, static_cast<size_t>(slots)), slots);
  // Slot j of a rank with c of them belongs at (j + 1/2) / c of the way; ties turn like a snake.
  std::vector<std::tuple<double, int, int>> order;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    for (int j = 0; j < counts[r]; ++j) {
      order.emplace_back((2.0 * j + 1) / (2.0 * counts[r]), j % 2 == 0 ? r : -r, r);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<int> map;
  for (const auto& [at, turn, rank] : order) map.push_back(rank);
  return map;
}

std::vector<int> RedealSlots(const std::vector<int>& map, std::span<const int> from,
                             std::span<const double> weights) {
  RF_CHECK(!map.empty() && !from.empty());
  RF_CHECK(weights.empty() || weights.size() == from.size());
  std::vector<int> now(static_cast<size_t>(*std::max_element(map.begin(), map.end())) + 1, kNobody);
  bool newcomers = false;
  for (int r = 0; r < static_cast<int>(from.size()); ++r) {
    newcomers |= from[r] < 0;
    if (from[r] < 0 || from[r] >= static_cast<int>(now.size())) continue;
    RF_CHECK(now[from[r]] == kNobody);
    now[from[r]] = r;
  }
  std::vector<int> next;
  for (const int rank : map) next.push_back(now[rank]);
  const std::vector<double> equal(from.size(), 1.0);
  Deal deal(std::move(next),
            Quotas(weights.empty() ? std::span<const double>(equal) : weights, map.size()));
  deal.GiveFreeSlots();
  if (newcomers) deal.Even();
  return deal.Take();
}

std::vector<int> SlotCounts(const std::vector<int>& map, int ranks) {
  std::vector<int> counts(static_cast<size_t>(ranks));
  for (const int rank : map) {
    if (rank != kNobody) ++counts[static_cast<size_t>(rank)];
  }
  return counts;
}

}  // namespace ringfill
