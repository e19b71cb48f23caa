// Replicated tokens on the CPU, stage by stage: every rank holds the few tokens, computes its slice
// of each matrix, attends over the KV pages that it keeps, and partial attention merges by
// log-sum-exp. Each weight is read once a node, not once a rank. Between the stages lie
// all-gathers, which the caller makes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/compute/cpu/cpu_rank.h"
#include "engine/compute/device.h"
#include "engine/compute/slices.h"

namespace ringfill {

// Used by the operations of one device, in the order of the stages. What each stage sends and
// reads, all float32, in parts of Device::TokenBytes:
//   kQkv     room for a RoundHeader, [tokens][largest slice of q_width + 2 * kv_width]
//   kStates  a state (device.h) of the tokens
//   kOutput  [tokens][largest slice of width]
//   kFfn     [tokens][width]
class TokenPass {
 public:
  using Batch = Device::TokenBatch;

  explicit TokenPass(CpuRank& rank);

  static size_t StageBytes(const ModelConfig& config, Device::TokenStage stage, int64_t tokens,
                           int ranks);

  void Begin(std::shared_ptr<const Batch> batch);
  void Stop(std::shared_ptr<const Batch> rest);
  void Qkv(int layer, float* send);
  void Attend(int layer, const float* gathered, float* send);
  void Output(int layer, const float* gathered, float* send);
  void Ffn(int layer, const float* gathered, float* send);
  void EndLayer(const float* gathered);
  void Hidden(float* out);

 private:
  // Consecutive tokens that look at the same run from the same token on.
  struct Tile {
    int64_t token;
    int tokens;
  };
  // A tile's attention to some pages of its run, under one KV head.
  struct Task {
    Tile tile;
    int kv_head;
    int64_t first_page, pages;
    bool alone;        // no other task has the same tile and head
    int64_t part_row;  // otherwise: its first row in parts_
  };

  void MakeTiles();
  void MakeTasks();
  // rows [slice) of `w` times every token: y[token][row], stride `stride`. Shared by the team.
  void Multiply(const WeightMatrix& w, Slice rows, Slice cols, const float* x, int64_t x_stride,
                float* y, int64_t y_stride);
  // normed_ = x_, normalised.
  void Norm(const std::vector<float>& weight);
  // qkv_ of all ranks' slices, turned; q_.
  void Assemble(const float* gathered);
  void StoreOwnKv(int layer);
  void RunTask(int layer, int thread, const Task& task, const SoftmaxRows& state);

  // Notes the tokens whose part of a stage, `stride` floats apart, is not finite.
  void NoteFaults(int layer, Device::TokenStage stage, const float* parts, int64_t floats,
                  int64_t stride) const;
  void NoteStateFaults(int layer, const float* states) const;

  int64_t tokens() const { return batch_->tokens(); }
  int64_t qkv_width() const { return config_.q_width() + 2 * config_.kv_width(); }
  SoftmaxRows PartOf(const Task& task) const;
  // The rows of a task in a state of all tokens.
  SoftmaxRows RowsOf(const Task& task, float* state) const;

  CpuRank& rank_;
  const CpuModel& model_;
  const ModelConfig& config_;
  std::shared_ptr<const Batch> batch_;
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  int64_t part_rows_ = 0;

  // All floats but q_.
  LedgerBuffer x_;          // [tokens][width]
  LedgerBuffer normed_;     // [tokens][width]
  LedgerBuffer angles_;     // [tokens][rope_dims]
  LedgerBuffer qkv_;        // [tokens][q | k | v]
  LedgerBuffer q_;          // [kv_heads][tokens * group][head_dim] in the KV type
  LedgerBuffer attention_;  // [tokens][q_width]
  LedgerBuffer gate_, up_;  // [tokens][ffn_width]
  LedgerBuffer parts_;      // states of tasks that are not alone
};

}  // namespace ringfill
