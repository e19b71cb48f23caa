#include "engine/worker/rank.h"

#include <algorithm>

namespace ringfill {

Rank::Rank(const ForwardContext& context, const Placement& placement, int64_t pages, int threads,
           int spin_rounds)
    : context(context),
      placement(placement),
      pool(context.geometry, pages),
      team(threads, spin_rounds) {
  for (int t = 0; t < threads; ++t) {
    scratch.push_back(std::make_unique<ThreadScratch>(context.config(), context.forward->dtype()));
  }
}

void Rank::Reserve(AlignedBuffer& buffer, size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = AlignedBuffer();
  buffer = AlignedBuffer(std::max(bytes, size_t{4096}));
}

}  // namespace ringfill
