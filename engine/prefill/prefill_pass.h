// One rank's pass over all layers for a step's prompt chunks, in sharded-token mode with ring
// pass-KV: each rank computes its own rows with whole weight matrices; KV shards travel round the
// ring while attention to the shard at hand computes.
//
// Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023); per-stripe visible
// lengths replace masks between ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/prefill/row_layout.h"
#include "engine/worker/rank.h"

namespace ringfill {

// Used once, by the rank's own thread.
class PrefillPass {
 public:
  PrefillPass(Rank& rank, const StepPlan& plan, const StepControl& control, RankStepResult& result);

  // Leaves the chunks' KV in their pages. An error aborts the step on this rank.
  absl::Status Run();

  // After Run: the normalised hidden state of the last position of each chunk that wants logits and
  // was not stopped, in plan order; zeros where another rank is its home. [rows][width]
  std::vector<float> last_hidden() const;

 private:
  // The KV shard of one source rank in this step's ring buffers.
  struct Shard {
    std::vector<size_t> chunk_offset;  // [chunks] bytes from the payload's start
    std::vector<int64_t> chunk_pages;  // [chunks]
    size_t bytes = 0;                  // payload
  };

  void Prepare();
  Shard MeasureShard(int source) const;
  absl::Status AcquireLayer(int layer);

  // First half of `layer` for one tile: QKV, queries packed, K and V stored in their pages.
  void Project(int layer, int thread, const RowTile& tile);
  // Second half.
  void Finish(int layer, int thread, const RowTile& tile);

  absl::Status RingAttention(int layer);
  RoundHeader MakeHeader(int layer, int round, int source) const;
  void GatherOwnShard(int layer, std::byte* buffer);
  void Attend(int layer, int source, const std::byte* received);
  void AttendTile(int layer, int thread, int source, const std::byte* received,
                  const QueryTile& tile, int kv_head);

  // Only rows that somebody asks about go through the attention and the second half of the last
  // layer.
  bool LastLayerNeeds(int64_t row, int64_t rows) const;
  bool NeededIn(int layer, int64_t row, int64_t rows) const;
  bool ChunkStopped(int chunk) const { return (stopped_ >> chunk) & 1; }
  bool TileStopped(const RowTile& tile) const;
  bool AllStopped() const;
  uint64_t AskWhatToStop() const;

  Rank& rank_;
  const ForwardContext& ctx_;
  const StepPlan& plan_;
  const StepControl& control_;
  RankStepResult& result_;

  RowLayout layout_;
  std::vector<Shard> shards_;  // [ranks]
  std::vector<bool> wanted_;   // [rows] hidden state asked for
  bool any_wanted_ = false;    // on any rank: all ranks agree
  uint64_t stopped_ = 0;       // agreed by all ranks
  uint64_t stop_next_ = 0;     // collected in the current layer
  double wait_s_ = 0;
};

}  // namespace ringfill
