// One rank's pass over all layers for a step's decode tokens, in replicated-token mode: every rank
// holds the few tokens, computes its slice of each matrix, attends over the KV pages that it keeps,
// and partial attention merges by log-sum-exp. Each weight is read once a node, not once a rank.
//
// Four all-gathers a layer: q, k, v rows; attention partials; o rows; down's partial sums.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/decode/slices.h"
#include "engine/worker/rank.h"

namespace ringfill {

// Used once, by the rank's own thread.
class DecodePass {
 public:
  DecodePass(Rank& rank, const StepPlan& plan, RankStepResult& result);

  // Leaves each token's KV in its home page.
  absl::Status Run();
  // After Run: the normalised hidden states, equal on every rank. [decodes][width]
  const std::vector<float>& hidden() const { return normed_; }

 private:
  absl::Status ProjectQkv(int layer);
  void StoreOwnKv(int layer);
  absl::Status Attend(int layer);
  void AttendLocally(int layer);
  absl::Status Finish(int layer);

  // rows [slice) of `w` times every token: out[b][row], stride `stride`. Shared by the team.
  void Multiply(const WeightMatrix& w, Slice rows, Slice cols, const float* x, int64_t x_stride,
                float* y, int64_t y_stride);
  absl::Status Gather(const std::vector<float>& send, std::vector<float>& recv);

  Rank& rank_;
  const ForwardContext& ctx_;
  const ModelConfig& config_;
  const StepPlan& plan_;
  RankStepResult& result_;
  const int batch_;
  const int group_;

  // All [batch][...] floats.
  std::vector<float> x_, normed_, qkv_, attention_, ffn_;
  std::vector<float> angles_;        // [batch][rope_dims]
  std::vector<float> send_, recv_;   // all-gather buffers
  std::vector<std::byte> q_packed_;  // [batch][heads][head_dim] in the KV type
  std::vector<int64_t> visible_;     // [batch] local KV tokens
  double wait_s_ = 0;
};

}  // namespace ringfill
