#include "engine/compute/cuda/fused_prefill.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/workspace.h"

namespace ringfill {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Addresses have to be multiples of it.
constexpr uintptr_t kAlignment = 16;

}  // namespace

FusedPrefill::FusedPrefill(const ModelConfig& config, const Options& options, CudaMemory& memory)
    : device_(options.device), memory_(memory) {
  const KvGeometry& geometry = options.geometry;
  const auto pages = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, options.pages))));
  options_ = {.head_dim = config.head_dim,
              .kv_heads = config.kv_heads,
              .page_tokens = geometry.page_tokens,
              .entries = FusedEntriesOf(config.kv_heads),
              .table_pages = std::min(pages, kMostTablePages),
              // Shards of other ranks may hold more pages than this one's pool.
              .page_limit = 4 * pages,
              .page_strides = {static_cast<int64_t>(geometry.PageBytes())}};
  if (geometry.layers > 1) {
    options_.page_strides.push_back(static_cast<int64_t>(geometry.LayerBytes()));
  }
  limits_ = {.group = config.heads / config.kv_heads,
             .page_tokens = geometry.page_tokens,
             .table_pages = options_.table_pages};
}

absl::StatusOr<std::unique_ptr<FusedPrefill>> FusedPrefill::Make(const ModelConfig& config,
                                                                 const Options& options,
                                                                 CudaMemory& memory) {
  std::unique_ptr<FusedPrefill> made(new FusedPrefill(config, options, memory));
  RF_RETURN_IF_ERROR(made->Prepare(options));
  return made;
}

absl::Status FusedPrefill::Prepare(const Options& options) {
  RF_ASSIGN_OR_RETURN(attention_, MakeFusedAttention(options.device, options_));
  limits_.least_keys = attention_->least_keys();
  const auto entries = static_cast<size_t>(options_.entries);
  const size_t rows = entries * static_cast<size_t>(options_.kv_heads) * gpu::kFusedRows;
  const size_t row_bytes = static_cast<size_t>(options_.head_dim) * 2;
  const size_t table_bytes = entries * static_cast<size_t>(options_.table_pages) * sizeof(int32_t);
  const auto take = [this](size_t bytes, DeviceBuffer& buffer) -> absl::Status {
    RF_ASSIGN_OR_RETURN(buffer, memory_.Allocate(bytes, "attention scratch"));
    return absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(take(rows * row_bytes, q_));
  RF_RETURN_IF_ERROR(take(rows * row_bytes, out_));
  RF_RETURN_IF_ERROR(take(rows * sizeof(float), log_sum_exp_));
  RF_RETURN_IF_ERROR(take(table_bytes, tables_));
  const size_t workspace_bytes = attention_->workspace_bytes();
  if (workspace_bytes > kFusedWorkspaceBytes) {
    return absl::UnimplementedError(absl::StrCat(attention_->name(), " wants ", workspace_bytes,
                                                 " bytes to work in, ", kFusedWorkspaceBytes,
                                                 " are planned"));
  }
  return take(std::max<size_t>(1, workspace_bytes), workspace_);
}

std::vector<bool> FusedPrefill::TakesRuns(const std::vector<KvRun>& runs,
                                          const std::vector<int64_t>& most_visible,
                                          const gpu::KvPages& kv) const {
  const bool aligned = reinterpret_cast<uintptr_t>(kv.base) % kAlignment == 0;
  std::vector<bool> out;
  for (size_t r = 0; r < runs.size(); ++r) {
    const KvRun& run = runs[r];
    const auto offset = static_cast<int64_t>(run.shard_offset);
    const int64_t last =
        run.pages.empty()
            ? CeilDiv(most_visible[r], kv.page_tokens)
            : static_cast<int64_t>(*std::max_element(run.pages.begin(), run.pages.end()));
    out.push_back(aligned && offset % kv.page_stride == 0 &&
                  offset / kv.page_stride + last < options_.page_limit);
  }
  return out;
}

FusedPrefill::Lists FusedPrefill::Add(std::vector<gpu::FusedEntry> entries, Upload& lists) const {
  FillUpEntries(entries, options_.entries);
  std::vector<int32_t> rows, keys;
  for (const gpu::FusedEntry& entry : entries) {
    rows.push_back(std::max(1, entry.tokens * limits_.group));
    keys.push_back(entry.pages * limits_.page_tokens);
  }
  return {lists.Add(entries), lists.Add(rows), lists.Add(keys),
          static_cast<int>(entries.size()) / options_.entries};
}

absl::Status FusedPrefill::Run(const gpu::AttentionArgs& attention, const Lists& at,
                               const Upload& lists, unsigned long long* nonfinite,
                               cudaStream_t stream) {
  auto* const tables = reinterpret_cast<int32_t*>(tables_.data());
  auto* const log_sum_exp = reinterpret_cast<float*>(log_sum_exp_.data());
  for (int call = 0; call < at.calls; ++call) {
    const int first = call * options_.entries;
    const gpu::FusedRowsArgs rows = {.attention = attention,
                                     .entries = lists.At<const gpu::FusedEntry>(at.entries) + first,
                                     .count = options_.entries,
                                     .table_pages = options_.table_pages};
    RF_RETURN_IF_ERROR(LaunchStatus(gpu::GatherFusedQueries(rows, q_.data(), stream),
                                    "GatherFusedQueries", device_));
    RF_RETURN_IF_ERROR(
        LaunchStatus(gpu::FillFusedTables(rows, tables, stream), "FillFusedTables", device_));
    RF_RETURN_IF_ERROR(attention_->Run({.q = q_.data(),
                                        .rows = lists.At<const int32_t>(at.rows) + first,
                                        .keys = lists.At<const int32_t>(at.keys) + first,
                                        .pages = tables,
                                        .kv = attention.kv,
                                        .out = out_.data(),
                                        .log_sum_exp = log_sum_exp,
                                        .workspace = workspace_.data()},
                                       stream));
    RF_RETURN_IF_ERROR(LaunchStatus(
        gpu::MergeFused(rows, out_.data(), log_sum_exp, nonfinite, stream), "MergeFused", device_));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
