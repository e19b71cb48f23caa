// The order of operations and transfers of one sharded chunk, as prefill/ queues them, worked out
// for all ranks at once on RingTimes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost/chunk_counts.h"
#include "engine/cost/op_cost.h"
#include "engine/cost/ring_times.h"
#include "engine/schedule/way_chooser.h"

namespace ringfill {

class ShardedSchedule {
 public:
  // All outlive the schedule. costs: [ranks].
  ShardedSchedule(const ModelShape& shape, const std::vector<OpCost>& costs,
                  const ChunkCounts& counts, Way way, RingTimes& times);

  // Embeds the rows and projects the first layer.
  void Begin();
  // K/V rows on their way home, and the attention of one layer. `last`: only rows that somebody
  // asks about attend.
  void Attend(bool last);
  // The second half of a layer and the first half of the next.
  void Products(bool last);

  // [ranks] sent so far
  const std::vector<int64_t>& sent_bytes() const { return sent_; }

 private:
  int n() const { return times_.ranks(); }
  int Beyond(int rank, int distance) const { return ((rank + distance) % n() + n()) % n(); }
  const RankCount& count(int rank) const { return counts_.ranks[static_cast<size_t>(rank)]; }
  const OpCost& cost(int rank) const { return costs_[static_cast<size_t>(rank)]; }

  std::vector<double> Shift(int distance, std::vector<int64_t> bytes);
  std::vector<double> Shift(int distance, std::vector<int64_t> bytes,
                            const std::vector<double>& after);
  void Header(int rank) { times_.Run(rank, cost(rank).overhead()); }
  // What `computing` takes to attend for the rows of `owner` to the KV of `kv`.
  void AttendFor(int computing, int owner, int kv, bool last);
  int64_t ShardBytes(int rank) const;

  void StartHoming();
  void FinishHoming();
  void PassKv(bool last);
  void GatherKv(bool last);
  void StartPassQ();
  void PassQ(bool last);
  void MergeReturned(const std::vector<double>& returned);

  const ModelShape& shape_;
  const std::vector<OpCost>& costs_;
  const ChunkCounts& counts_;
  const Way way_;
  RingTimes& times_;
  std::vector<int64_t> sent_;
  std::vector<std::vector<double>> homing_;  // [distance][ranks]
  std::vector<double> queries_coming_;       // [ranks]
};

}  // namespace ringfill
