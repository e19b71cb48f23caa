// How the sharded chunks of a step meet the KV of other ranks, one layer at a time. All strategies
// give the same attention; they differ in what travels, in memory and in order.
//
// Every rank of a step runs the same strategies over the same chunks in the same order, also
// without rows or KV of its own. Each strategy brings every rank's stop mask to every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/compute/batch.h"
#include "engine/prefill/row_layout.h"
#include "engine/stream/round_header.h"
#include "engine/worker/rank.h"

namespace ringfill {

// What the strategies of a pass share. Outlives them.
struct PassContext {
  Rank& rank;
  const StepPlan& plan;
  const StepLayout& layout;
  StepTransfers& transfers;
  // This rank's queries and states on the device. Before q lies room for a header.
  std::byte* q = nullptr;
  std::byte* state = nullptr;

  int me() const { return rank.index(); }
  int ranks() const { return rank.ranks(); }
  // The rank `distance` places further on the ring; may be negative.
  int Beyond(int distance) const {
    return ((rank.index() + distance) % ranks() + ranks()) % ranks();
  }
  int64_t rows() const { return layout.rows(me()).rows(); }
  RoundHeader Header(int layer, int round, int source, RoundKind kind, size_t bytes) const;
  // This rank's pages of `chunks`, one run each.
  std::vector<KvRun> OwnRuns(const std::vector<int>& chunks) const;
};

// One layer of a pass.
struct AttentionLayer {
  int layer = 0;
  uint64_t stop_mask = 0;    // what this rank asks to stop, for headers
  uint64_t stopped = 0;      // what all ranks have agreed to stop
  bool only_wanted = false;  // the last layer
  bool clear = false;        // the first strategy's: states start empty
  std::shared_ptr<LayerFlags> flags;
};

class AttentionStrategy {
 public:
  virtual ~AttentionStrategy() = default;

  // Queues what needs only the layer's queries; its K/V may still be on their way home.
  virtual void Start(const AttentionLayer&) {}
  // Queues the rest: behind it the states of this rank's rows are whole.
  virtual void Attend(const AttentionLayer& layer) = 0;
};

// `chunks`: indices in the plan. The buffers that a strategy needs are reserved here, so nothing
// may be queued that uses those of a strategy made before.
using StrategyPtr = std::unique_ptr<AttentionStrategy>;
StrategyPtr MakeRingPassKv(PassContext& pass, const std::vector<int>& chunks);
// Ring pass-KV when the layer's shards of all ranks exceed RankOptions::gather_bytes.
StrategyPtr MakeGatherKv(PassContext& pass, const std::vector<int>& chunks);
StrategyPtr MakePassQ(PassContext& pass, const std::vector<int>& chunks);
StrategyPtr MakeOrdered(PassContext& pass, const std::vector<int>& chunks);
StrategyPtr MakeStrategy(RingStrategy strategy, PassContext& pass, const std::vector<int>& chunks);

}  // namespace ringfill
