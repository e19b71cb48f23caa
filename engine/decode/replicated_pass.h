// One rank's pass over all layers for a step's replicated tokens: all decodes, and chunks too short
// to shard. Every rank holds the tokens, computes its slice of each matrix and attends over the KV
// pages that it keeps; partial attention merges by log-sum-exp. Each weight is read once a node,
// not once a rank.
//
// Four all-gathers a layer: q, k, v rows; attention states; o rows; down's partial sums.
//
// Each part of a layer's first all-gather begins with a RoundHeader. A short chunk over a long
// cached prefix may take minutes, so chunks stop at a layer's bound as in PrefillPass: the header
// carries the rank's wish, and what layer l-2 said holds from layer l on, on every rank alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/stream/round_header.h"
#include "engine/worker/rank.h"
#include "engine/worker/workers.h"

namespace ringfill {

// Used once, by the rank's own host thread. All arguments must outlive it, and the pass must
// outlive what it has queued: destroy it when the stream has been synchronised.
class ReplicatedPass {
 public:
  ReplicatedPass(Rank& rank, const StepPlan& plan, const StepControl& control,
                 StepTransfers& transfers, RankStepResult& result);

  // Are there such tokens in the plan?
  static bool Needed(const StepPlan& plan);

  // Leaves each token's KV in its home page, and everything queued has run. After an error things
  // may still be queued.
  absl::Status Run();

  // After Run: normalised final states, equal on every rank; [width]. Of a chunk's last position.
  // REQUIRES: the chunk is replicated and was not stopped.
  const float* ChunkHidden(int chunk) const;
  const float* DecodeHidden(int decode) const;

 private:
  // A token of the pass. Tokens of a chunk follow each other, decodes come last.
  struct Token {
    TokenId token;
    int64_t position;
    int placement;
    int chunk;  // -1: a decode
    const BlockTable* pages;
    int64_t document_start;
  };

  void ListTokens();
  std::shared_ptr<const Device::TokenBatch> MakeBatch(size_t first, size_t last) const;
  absl::Status RunBatch(size_t first, size_t last);
  // Of a part of `bytes`, itself included.
  RoundHeader Header(int layer, int source, size_t bytes) const;
  // Q, K and V of layer, gathered, with headers that are checked.
  const std::byte* GatherQkv(int layer, int64_t tokens, std::byte* send);
  // What all ranks agreed on in `layer`; true when that stops more than was stopped before.
  bool TakeStops(int layer);
  bool Stopped(int chunk) const { return chunk >= 0 && ((stopped_ >> chunk) & 1); }
  bool AllStopped(size_t first, size_t last) const;
  uint64_t AskWhatToStop() const;
  // `send` holds this rank's part of a stage: what the next stage reads.
  const std::byte* Gather(Device::TokenStage stage, int layer, int64_t tokens, std::byte* send);
  void FindFaults();

  Rank& rank_;
  const StepPlan& plan_;
  StepTransfers& transfers_;
  const StepControl& control_;
  RankStepResult& result_;
  std::vector<Token> tokens_;
  std::vector<size_t> last_of_chunk_;  // [chunks] index of its last token
  size_t first_decode_ = 0;
  std::byte* send_[2] = {nullptr, nullptr};  // the second for one rank alone
  std::byte* gathered_ = nullptr;
  std::vector<float> hidden_;                       // [tokens][width]
  std::vector<std::shared_ptr<LayerFlags>> flags_;  // [layers queued] of the batch
  uint64_t stopped_ = 0;                            // agreed by all ranks
  using Faults = std::shared_ptr<std::vector<Device::TokenFault>>;
  std::vector<Faults> faults_;  // [batches][tokens]
};

}  // namespace ringfill
