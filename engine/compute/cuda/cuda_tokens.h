// Replicated tokens on a GPU, stage by stage (device.h): every rank holds the few tokens, computes
// its slice of each matrix, attends over the KV pages that it keeps, and partial attention merges
// by log-sum-exp. Between the stages lie all-gathers, which the caller makes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/compute/cuda/cuda_graphs.h"
#include "engine/compute/cuda/cuda_rank.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/token_lists.h"
#include "engine/compute/device.h"
#include "engine/compute/slices.h"

namespace ringfill {

// Used by work on the rank's stream, in the order of the stages. What each stage sends and reads,
// all float32, in parts of Device::TokenBytes:
//   kQkv     room for a RoundHeader, [rows][largest slice of q_width + 2 * kv_width]
//   kStates  a state (device.h) of the rows
//   kOutput  [rows][largest slice of width]
//   kFfn     [rows][width]
// where rows are the tokens and what they are padded with (token_lists.h), on every rank alike.
class CudaTokens {
 public:
  using Batch = Device::TokenBatch;

  explicit CudaTokens(CudaRank& rank);

  static size_t StageBytes(const ModelConfig& config, Device::TokenStage stage, int64_t tokens,
                           int ranks);

  absl::Status Begin(std::shared_ptr<const Batch> batch);
  absl::Status Stop(std::shared_ptr<const Batch> rest);
  absl::Status Qkv(int layer, float* send);
  absl::Status Attend(int layer, const float* gathered, float* send);
  absl::Status Output(int layer, const float* gathered, float* send);
  absl::Status Ffn(int layer, const float* gathered, float* send);
  absl::Status EndLayer(const float* gathered);
  absl::Status Hidden(float* out);

  // Stages that ran as graphs.
  int64_t graphs_replayed() const { return graphs_.replayed(); }
  // REQUIRES: nothing is queued.
  void DropGraphs() { graphs_.Clear(); }

 private:
  using Stage = Device::TokenStage;

  // The batch's lists on the device.
  struct Lists {
    const int32_t* token;
    const int64_t* position;
    const gpu::KvTarget* targets;
    const gpu::KvRunView* runs;
    const uint32_t* pages;
    const int64_t* begin;
    const int64_t* visible;
    const gpu::DecodeWork* work;
    const gpu::MergeWork* merge;
    int works = 0, merges = 0;
    int64_t parts = 0;
  };

  absl::Status SendLists();
  absl::Status ReserveScratch();
  void ChooseGraphs();
  // `launches` of a stage, or a graph of them.
  absl::Status RunStage(Stage stage, int layer, const float* in, float* out,
                        const std::function<absl::Status()>& launches);
  absl::Status LaunchQkv(int layer, float* send);
  absl::Status LaunchAttend(int layer, const float* gathered, float* send);
  absl::Status LaunchOutput(int layer, const float* gathered, float* send);
  absl::Status LaunchFfn(int layer, const float* gathered, float* send);
  // A token's values, as gpu::NoteFaults takes them.
  struct Values {
    const float* first;
    int64_t token_stride;
    int pieces = 1;
    int64_t piece_stride = 0;
    int64_t floats;
  };
  absl::Status NoteFaults(int layer, Stage stage, const Values& values);
  absl::Status NoteStateFaults(int layer, const gpu::SoftmaxArrays& states);
  absl::Status Norm(const float* weight);
  absl::Status Multiply(const Product& product) { return rank_.Multiply(product); }

  int64_t tokens() const { return batch_->tokens(); }
  int64_t rows() const { return PaddedTokens(tokens()); }
  // The part of the hidden dimension that this rank computes.
  Slice HiddenSlice() const;
  float* x() const { return reinterpret_cast<float*>(x_.data()); }

  CudaRank& rank_;
  const ModelConfig& config_;
  std::shared_ptr<const Batch> batch_;
  Lists lists_{};

  CudaScratch lists_memory_;
  CudaScratch x_;       // [rows][width] float
  CudaScratch angles_;  // [rows][rope_dims] float
  CudaScratch q_;       // [kv_heads][rows * group][head_dim] bf16
  CudaScratch parts_;   // partial states of long runs
  CudaScratch faults_;  // [rows] unsigned, where a row was first not finite; 0: nowhere
  CudaGraphs graphs_;
};

}  // namespace ringfill
