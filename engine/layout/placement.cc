#include "engine/layout/placement.h"

#include <utility>

#include "base/check.h"
#include "engine/layout/slot_map.h"

namespace ringfill {

Placement::Placement(int ranks, int stripe_tokens)
    : Placement(ranks, stripe_tokens, HealthySlotMap(ranks)) {}

Placement::Placement(int ranks, PlacementSpec spec) : ranks_(ranks), spec_(std::move(spec)) {
  RF_CHECK(ranks_ >= 1 && stripe_tokens() >= 1 && slots() > 0);
  const int period = 2 * slots();
  period_rank_.resize(period);
  before_.assign(ranks_, std::vector<int>(period + 1, 0));
  stripes_.resize(ranks_);
  for (int k = 0; k < period; ++k) {
    const int rank = spec_.slot_map[SlotOfStripe(k)];
    RF_CHECK(rank >= 0 && rank < ranks_);
    period_rank_[k] = rank;
    stripes_[rank].push_back(k);
    for (int r = 0; r < ranks_; ++r) before_[r][k + 1] = before_[r][k] + (r == rank ? 1 : 0);
  }
}

int Placement::SlotOfStripe(int64_t stripe) const {
  RF_DCHECK(stripe >= 0);
  const int k = static_cast<int>(stripe % (2 * slots()));
  return k < slots() ? k : 2 * slots() - 1 - k;
}

int Placement::RankOfStripe(int64_t stripe) const {
  RF_DCHECK(stripe >= 0);
  return period_rank_[stripe % (2 * slots())];
}

int64_t Placement::StripesBefore(int rank, int64_t stripe) const {
  RF_DCHECK(rank >= 0 && rank < ranks_ && stripe >= 0);
  const int64_t period = 2 * slots();
  return stripe / period * static_cast<int64_t>(stripes_[rank].size()) +
         before_[rank][stripe % period];
}

int64_t Placement::TokensBefore(int rank, int64_t position) const {
  const int64_t stripe = position / stripe_tokens();
  const int64_t partial = RankOfStripe(stripe) == rank ? position % stripe_tokens() : 0;
  return StripesBefore(rank, stripe) * stripe_tokens() + partial;
}

int64_t Placement::LocalToken(int64_t position) const {
  return TokensBefore(Home(position), position);
}

int64_t Placement::StripeAt(int rank, int64_t local_stripe) const {
  RF_DCHECK(rank >= 0 && rank < ranks_ && local_stripe >= 0);
  const std::vector<int>& own = stripes_[rank];
  RF_CHECK(!own.empty());
  const int64_t count = static_cast<int64_t>(own.size());
  return local_stripe / count * (2 * slots()) + own[local_stripe % count];
}

int64_t Placement::PositionAt(int rank, int64_t local_token) const {
  return StripeAt(rank, local_token / stripe_tokens()) * stripe_tokens() +
         local_token % stripe_tokens();
}

}  // namespace ringfill
