#include "engine/compute/cuda/workspace.h"

#include <algorithm>

#include "base/float_types.h"
#include "engine/compute/cuda/fused_work.h"

namespace ringfill {
namespace {

// Lists of operations, results on their way, what the runtime takes.
constexpr size_t kSmallThings = size_t{64} << 20;

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
         FusedBytes(c) + kSmallThings;
}

}  // namespace ringfill
