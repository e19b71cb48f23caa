#include "engine/compute/cuda/workspace.h"

#include <algorithm>

#include "base/float_types.h"
#include "engine/compute/cuda/fused_work.h"

namespace ringfill {
namespace {

// Lists of operations and results on their way.
constexpr size_t kSmallThings = size_t{64} << 20;
// Code of kernels and libraries, which CUDA loads with their first call, and the context's growth.
constexpr size_t kCodeBytes = size_t{512} << 20;
// NCCL's buffers. Most lie there when a ring has formed; an algorithm that it keeps for longer
// all-gathers takes its own with the first of these. It allocates some for a communicator, and some
// for each peer: up to 32 channels of 12 MiB for send and receive over NVLink. Ranks beyond a
// machine of 8 GPUs share the buffers of the network. As reported for 8 H100:
// github.com/NVIDIA/nccl/issues/1685 (1.1 GB, 4.3 GB when all have met).
constexpr size_t kCommunicatorBytes = size_t{1} << 30;
constexpr size_t kPeerBytes = size_t{32 * 12} << 20;
constexpr int kMostPeers = 7;

size_t RowBytes(int64_t values, size_t element) {
  return static_cast<size_t>(kProductRows * values) * element;
}

// Queries, outputs, log-sum-exps and page tables of a call of fused attention.
size_t FusedBytes(const ModelConfig& c) {
  const auto entries = static_cast<size_t>(FusedEntriesOf(c.kv_heads));
  const size_t rows = entries * static_cast<size_t>(c.kv_heads) * gpu::kFusedRows;
  return rows * (2 * static_cast<size_t>(c.head_dim) * sizeof(Bf16) + sizeof(float)) +
         entries * static_cast<size_t>(kMostTablePages) * sizeof(int32_t);
}

}  // namespace

KvGeometry CudaKvGeometry(const ModelConfig& config, int page_tokens) {
  return {config.layers, config.kv_heads, page_tokens,
          sizeof(Bf16) * static_cast<size_t>(config.head_dim) * static_cast<size_t>(page_tokens)};
}

size_t CudaWorkspaceBytes(const ModelConfig& c) {
  const int64_t logits = std::max<int64_t>(kMostLogits, c.vocab);
  return RowBytes(c.width, sizeof(Bf16) + sizeof(float)) +
         RowBytes(c.q_width() + 2 * c.kv_width(), sizeof(float)) +
         RowBytes(2 * c.ffn_width, sizeof(Bf16)) + static_cast<size_t>(logits) * sizeof(float) +
         static_cast<size_t>(kVocabBlock * c.width) * sizeof(Bf16) + kCublasWorkspaceBytes +
         FusedBytes(c) + kFusedWorkspaceBytes + kSmallThings;
}

size_t CudaLibraryBytes(int ranks) {
  if (ranks == 1) return kCodeBytes;
  const auto peers = static_cast<size_t>(std::min(ranks - 1, kMostPeers));
  return kCodeBytes + kCommunicatorBytes + peers * kPeerBytes;
}

size_t PinnedLogitBytes(const ModelConfig& config) {
  return static_cast<size_t>(std::min(kMostLogits, kReplicatedTokens * config.vocab)) *
         sizeof(float);
}

}  // namespace ringfill
