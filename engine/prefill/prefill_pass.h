// One rank's pass over all layers for a step's sharded chunks: each rank computes its own rows with
// whole weight matrices, and only attention (and dealt K/V rows) communicate.
//
// The host queues ahead of the device by at most two layers. Before it queues layer l it waits for
// the attention of layer l-2 and reads what that layer's headers said: chunks that any rank asked
// to stop then stop at layer l on every rank alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/prefill/attention_strategy.h"
#include "engine/prefill/kv_homing.h"
#include "engine/prefill/row_layout.h"
#include "engine/worker/rank.h"
#include "engine/worker/workers.h"

namespace ringfill {

// Used once, by the rank's own host thread. All arguments must outlive it, and the pass must
// outlive what it has queued: destroy it when the stream has been synchronised.
class PrefillPass {
 public:
  PrefillPass(Rank& rank, const StepPlan& plan, const StepControl& control,
              StepTransfers& transfers, RankStepResult& result);

  // Leaves the chunks' KV in their pages, and everything queued has run. After an error things may
  // still be queued.
  absl::Status Run();

  // After Run: the normalised final state of the last position of each sharded chunk that wants
  // logits and was not stopped, in plan order; zeros where another rank computes it. [rows][width]
  std::vector<float>& hidden() { return hidden_; }
  // [rows] the rank that has it.
  const std::vector<int>& hidden_ranks() const { return hidden_ranks_; }

 private:
  absl::Status Prepare();
  // Waits until the attention of `layer` is done.
  absl::Status AwaitAttention(int layer);
  void RunLayers(int finish, int project);
  void QueueAttention(int layer);
  // What the end of the pass reads, queued.
  void QueueHidden();
  void QueueScores();
  void CollectScores();
  void CollectFaults();
  void ReportProgress(int layers_done);

  uint64_t AskWhatToStop() const;
  bool Stopped(int chunk) const { return (stopped_ >> chunk) & 1; }
  bool AllStopped() const;

  Rank& rank_;
  Device& device_;
  const StepPlan& plan_;
  const StepControl& control_;
  StepTransfers& transfers_;
  RankStepResult& result_;

  StepLayout layout_;
  PassContext context_;
  std::shared_ptr<const RowBatch> batch_;
  Device::RowBuffers buffers_{};
  std::unique_ptr<KvHoming> homing_;
  std::vector<StrategyPtr> strategies_;  // of those that the step's chunks use

  std::vector<std::shared_ptr<LayerFlags>> flags_;  // [layers]
  std::vector<EventPtr> attended_;                  // [layers queued]
  uint64_t stopped_ = 0;                            // agreed by all ranks
  bool any_wanted_ = false;                         // on any rank: all ranks agree
  int reported_ = 0;

  std::vector<float> hidden_;
  std::vector<int> hidden_ranks_;
  std::vector<std::vector<float>> last_rows_;  // one row each, written by the device
  std::vector<size_t> last_row_at_;            // where they go in hidden_, in rows
  std::vector<int64_t> scored_rows_;
  std::vector<float> scores_;
};

}  // namespace ringfill
