#include "engine/prefill/attention_strategy.h"

#include <algorithm>

#include "base/check.h"

namespace ringfill {

RoundHeader PassContext::Header(int layer, int round, int source, RoundKind kind,
                                size_t bytes) const {
  RoundHeader header;
  header.epoch = plan.epoch;
  header.step = plan.step;
  header.layer = static_cast<uint32_t>(layer);
  header.round = static_cast<uint32_t>(round);
  header.source = static_cast<uint32_t>(source);
  header.kind = static_cast<uint32_t>(kind);
  header.bytes = bytes;
  return header;
}

std::vector<KvRun> PassContext::OwnRuns(const std::vector<int>& chunks) const {
  std::vector<KvRun> runs;
  for (const int chunk : chunks) {
    const std::vector<PageId>& pages =
        plan.chunks[static_cast<size_t>(chunk)].pages[static_cast<size_t>(me())];
    const PageRange seen = layout.PagesOn(chunk, me());
    const auto first = pages.begin() + seen.first;
    runs.push_back({{first, first + seen.count}, 0});
  }
  return runs;
}

StrategyPtr MakeStrategy(RingStrategy strategy, PassContext& pass, const std::vector<int>& chunks) {
  switch (strategy) {
    case RingStrategy::kPassKv:
      return MakeRingPassKv(pass, chunks);
    case RingStrategy::kGatherKv:
      return MakeGatherKv(pass, chunks);
    case RingStrategy::kPassQ:
      return MakePassQ(pass, chunks);
    case RingStrategy::kOrdered:
      return MakeOrdered(pass, chunks);
  }
  RF_CHECK(false);
  return nullptr;
}

}  // namespace ringfill
