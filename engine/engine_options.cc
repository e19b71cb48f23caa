#include "engine/engine_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/machine.h"
#include "engine/compute/attention/attention.h"
#include "engine/compute/attention/kv_layout.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {
namespace {

absl::Status CheckOption(bool ok, const char* name, int64_t value, const std::string& need) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", need));
}

absl::Status CheckWeights(const EngineOptions& o) {
  if (o.rank_weights.empty()) return absl::OkStatus();
  if (o.rank_weights.size() != static_cast<size_t>(o.ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("ranks.weights has ", o.rank_weights.size(),
                                                   " values for ", o.ranks, " ranks"));
  }
  for (const double weight : o.rank_weights) {
    if (!std::isfinite(weight) || weight <= 0) {
      return absl::InvalidArgumentError("ranks.weights: each weight must be a positive number");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const EngineOptions& o) {
  RF_RETURN_IF_ERROR(
      CheckOption(o.page_tokens >= 16 && o.page_tokens <= 256 && o.page_tokens % 16 == 0,
                  "kv.page_tokens", o.page_tokens, "a multiple of 16 from 16 to 256"));
  RF_RETURN_IF_ERROR(
      CheckOption(o.stripe_tokens >= o.page_tokens && o.stripe_tokens % o.page_tokens == 0,
                  "sharding.stripe_tokens", o.stripe_tokens,
                  absl::StrCat("a multiple of kv.page_tokens (", o.page_tokens, ")")));
  if (o.strict && o.layout != Layout::kSnake) {
    return absl::InvalidArgumentError(
        "compute.numerics strict needs sharding.layout snake: other layouts depend on the length "
        "of the prompt");
  }
  if (o.strict && (o.mode.has_value() || o.strategy.has_value())) {
    return absl::InvalidArgumentError(
        "compute.numerics strict fixes how prompts are computed: leave ring.mode and "
        "ring.strategy at auto");
  }
  return CheckWeights(o);
}

}  // namespace

absl::Status CheckOptions(const EngineOptions& o) {
  RF_RETURN_IF_ERROR(CheckOption(o.ranks >= 1 && o.ranks <= kMaxRanks, "ranks.count", o.ranks,
                                 absl::StrCat("1 to ", kMaxRanks)));
  RF_RETURN_IF_ERROR(CheckOption(o.threads >= 0 && o.threads <= 1024, "compute.threads", o.threads,
                                 "0 (all cores) to 1024"));
  RF_RETURN_IF_ERROR(CheckLayout(o));
  RF_RETURN_IF_ERROR(
      CheckOption(o.chunk_tokens >= 1, "prefill.chunk_tokens", o.chunk_tokens, "at least 1"));
  RF_RETURN_IF_ERROR(CheckOption(o.max_queued_requests >= 1, "scheduler.max_queued_requests",
                                 o.max_queued_requests, "at least 1"));
  RF_RETURN_IF_ERROR(CheckOption(o.max_running_requests >= 1 && o.max_running_requests <= 256,
                                 "scheduler.max_running_requests", o.max_running_requests,
                                 "1 to 256"));
  RF_RETURN_IF_ERROR(CheckOption(o.outbox_events >= 1, "server.outbox_events",
                                 static_cast<int64_t>(o.outbox_events), "at least 1"));
  return CheckOption(o.kv_memory_bytes >= 0, "kv.memory_bytes", o.kv_memory_bytes,
                     "0 (automatic) or a size");
}

absl::Status CheckGpuOptions(const EngineOptions& o) {
  const auto f32 = [](const std::optional<DType>& type) { return type == DType::kF32; };
  if (f32(o.dtype) || f32(o.kv_dtype)) {
    return absl::InvalidArgumentError(
        "GPUs compute and keep KV in bf16: set compute.dtype and kv.dtype to auto or bf16, or "
        "ranks.backend: cpu");
  }
  if (o.strict) {
    return absl::InvalidArgumentError(
        "compute.numerics strict is there on the CPU alone: set it to fast, or ranks.backend: cpu");
  }
  return absl::OkStatus();
}

void SettleGpuPool(const ModelConfig& model, const EngineOptions& o, const GpuPages& gpu,
                   EngineInfo& info) {
  const KvBlockShape shape{info.kv_dtype, model.head_dim, o.page_tokens};
  const KvGeometry geometry{model.layers, model.kv_heads, o.page_tokens, shape.BlockBytes()};
  info.gpus = gpu.gpus;
  info.attention_kernel = "cuda";
  info.kv_pages = gpu.per_rank * o.ranks;
  info.kv_bytes = info.kv_pages * static_cast<int64_t>(geometry.PageBytes());
  info.kv_tokens = info.kv_pages * o.page_tokens;
}

namespace {

// Sizes the KV pool.
absl::Status SettlePool(const ModelConfig& model, const EngineOptions& o, EngineInfo& info) {
  const KvBlockShape shape{info.kv_dtype, model.head_dim, o.page_tokens};
  const KvGeometry geometry{model.layers, model.kv_heads, o.page_tokens, shape.BlockBytes()};
  info.attention_kernel = std::string(MakeAttentionKernel(shape, o.isa)->name());
  const auto page_bytes = static_cast<int64_t>(geometry.PageBytes());
  int64_t bytes = o.kv_memory_bytes;
  if (bytes == 0) {
    // Four contexts, and a partly filled page a rank for every request that may run.
    const int64_t context_pages = info.max_context_tokens / o.page_tokens + o.ranks;
    const int64_t pages = 4 * context_pages + o.max_running_requests * o.ranks;
    bytes = std::min(pages * page_bytes, UsableMemory() / 4);
  }
  const int64_t pages_per_rank = bytes / o.ranks / page_bytes;
  info.kv_pages = pages_per_rank * o.ranks;
  info.kv_bytes = info.kv_pages * page_bytes;
  info.kv_tokens = info.kv_pages * o.page_tokens;
  if (pages_per_rank == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.memory_bytes is ", o.kv_memory_bytes, "; one page on each of ", o.ranks,
                     " ranks takes ", page_bytes * o.ranks, " bytes"));
  }
  if (info.kv_bytes > UsableMemory() || pages_per_rank > std::numeric_limits<PageId>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("kv.memory_bytes is ", info.kv_bytes,
                                                   ", this process may have ", UsableMemory(),
                                                   " bytes"));
  }
  if (info.kv_tokens < info.max_context_tokens) {
    Log(LogLevel::kWarning, "the KV pool holds no whole context; larger requests are refused",
        {{"kv_tokens", info.kv_tokens},
         {"max_context_tokens", info.max_context_tokens},
         {"hint", "raise kv.memory_bytes or lower model.max_context_tokens"}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SettleOptions(const ModelConfig& model, EngineOptions& o, EngineInfo& info,
                           const GpuPages* gpu) {
  RF_RETURN_IF_ERROR(CheckOptions(o));
  if (gpu != nullptr) o.dtype = o.kv_dtype = DType::kBF16;
  if (!o.dtype.has_value()) {
    o.dtype = o.isa == CpuIsa::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
  }
  if (!o.kv_dtype.has_value()) o.kv_dtype = o.dtype;
  info.threads_settled_here = o.threads == 0;
  if (o.threads == 0) o.threads = UsableCores();
  if (o.max_context_tokens == 0) o.max_context_tokens = model.trained_context;
  info.ranks = o.ranks;
  info.threads_per_rank = std::max(1, o.threads / o.ranks);
  info.dtype = *o.dtype;
  info.kv_dtype = *o.kv_dtype;
  info.isa = CpuIsaName(o.isa);
  info.transport = o.workers ? "processes" : "threads";
  info.strict = o.strict;
  info.layout = o.layout;
  info.stripe_tokens = o.stripe_tokens;
  info.page_tokens = o.page_tokens;
  info.chunk_tokens = o.chunk_tokens;
  info.max_context_tokens = o.max_context_tokens;
  info.backend = gpu == nullptr ? "cpu" : "cuda";
  if (gpu != nullptr) {
    SettleGpuPool(model, o, *gpu, info);
    return absl::OkStatus();
  }
  return SettlePool(model, o, info);
}

}  // namespace ringfill
