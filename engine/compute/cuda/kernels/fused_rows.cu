#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/fused_rows.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/note_nonfinite.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / kWarpLanes;  // a warp takes a row
constexpr int kTableThreads = 256;
constexpr int kTableBlocks = 8;  // that share an entry's table
constexpr float kLog2E = 1.44269504088896340736f;

// A block copies an entry's rows under one KV head, which lie one after the other in both places.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void GatherFusedKernel(FusedRowsArgs args, void* q_out) {
  const AttentionArgs& attention = args.attention;
  const FusedEntry entry = args.entries[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const int64_t row_bytes = attention.head_dim * int64_t{2};
  const int64_t from = (head * attention.tokens + entry.token) * attention.group * row_bytes;
  const int64_t to =
      (static_cast<int64_t>(blockIdx.x) * attention.kv_heads + head) * kFusedRows * row_bytes;
  const int64_t bytes = entry.tokens * attention.group * row_bytes;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * 16; at < bytes; at += kThreads * 16) {
    Store(static_cast<unsigned char*>(q_out) + to + at,
          Load<uint4>(static_cast<const unsigned char*>(attention.q) + from + at));
  }
}

RF_KERNEL RF_LAUNCH_BOUNDS(kTableThreads) void FillTablesKernel(FusedRowsArgs args,
                                                                int32_t* pages_out) {
  const AttentionArgs& attention = args.attention;
  const FusedEntry entry = args.entries[blockIdx.x];
  const KvRunView view = attention.runs[entry.run];
  const int64_t offset = view.offset / attention.kv.page_stride;
  const int64_t keys = static_cast<int64_t>(entry.pages) * attention.kv.page_tokens;
  const int64_t tiles = (keys + kFusedTileKeys - 1) / kFusedTileKeys;
  int64_t end = (tiles * kFusedTileKeys + attention.kv.page_tokens - 1) / attention.kv.page_tokens;
  if (end > args.table_pages) end = args.table_pages;
  int32_t* const table = pages_out + static_cast<int64_t>(blockIdx.x) * args.table_pages;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kTableThreads + threadIdx.x; i < end;
       i += kTableBlocks * kTableThreads) {
    const int64_t logical = entry.first_page + (i < entry.pages ? i : entry.pages - 1);
    const int64_t page = view.first_page == KvRunView::kConsecutive
                             ? logical
                             : attention.page_table[view.first_page + logical];
    table[i] = static_cast<int32_t>(offset + page);
  }
}

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void MergeFusedKernel(FusedRowsArgs args, const Bf16* out,
                                                           const float* log_sum_exp,
                                                           unsigned long long* nonfinite) {
  const AttentionArgs& attention = args.attention;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + WarpId();
  const int row = static_cast<int>(at % kFusedRows);
  const int head = static_cast<int>(at / kFusedRows % attention.kv_heads);
  const int64_t index = at / kFusedRows / attention.kv_heads;
  if (index >= args.count) return;
  const FusedEntry entry = args.entries[index];
  if (row >= entry.tokens * attention.group) return;
  const int64_t state_row = (head * attention.tokens + entry.token) * attention.group + row;
  const SoftmaxArrays& state = attention.state;
  const int dim = attention.head_dim;
  // What was seen is a state with sum 1 and its maximum at the log-sum-exp.
  const float seen = log_sum_exp[at] * kLog2E;
  const float sum = state.sum[state_row];
  const float old = sum == 0.0f ? -kInfinity : state.max[state_row];
  const float max = fmaxf(seen, old);
  const float scale_seen = Exp2(seen - max);
  const float scale_old = sum == 0.0f ? 0.0f : Exp2(old - max);
  const float merged = sum * scale_old + scale_seen;
  bool bad = !IsFinite(merged);
  // All lanes have read what lane 0 overwrites.
  SyncWarp();
  if (LaneId() == 0) {
    state.max[state_row] = max;
    state.sum[state_row] = merged;
  }
  for (int d = LaneId(); d < dim; d += kWarpLanes) {
    float& acc = state.acc[state_row * dim + d];
    const float from = scale_old == 0.0f ? 0.0f : acc * scale_old;
    const float value = from + Widen(out[at * dim + d]) * scale_seen;
    bad |= !IsFinite(value);
    acc = value;
  }
  if (nonfinite != nullptr && bad) SetBit(nonfinite, entry.bit);
}

}  // namespace

int GatherFusedQueries(const FusedRowsArgs& args, void* q_out, KernelStream stream) {
  if (args.count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.count),
                  static_cast<unsigned>(args.attention.kv_heads));
  return Launch(GatherFusedKernel, grid, dim3(kThreads), 0, stream, args, q_out);
}

int FillFusedTables(const FusedRowsArgs& args, int32_t* pages_out, KernelStream stream) {
  if (args.count == 0) return cudaSuccess;
  return Launch(FillTablesKernel, dim3(static_cast<unsigned>(args.count), kTableBlocks),
                dim3(kTableThreads), 0, stream, args, pages_out);
}

int MergeFused(const FusedRowsArgs& args, const void* out, const float* log_sum_exp,
               unsigned long long* nonfinite, KernelStream stream) {
  const int64_t rows = static_cast<int64_t>(args.count) * args.attention.kv_heads * kFusedRows;
  if (rows == 0) return cudaSuccess;
  return Launch(MergeFusedKernel, BlocksOf(rows, kRowsPerBlock), dim3(kThreads), 0, stream, args,
                static_cast<const Bf16*>(out), log_sum_exp, nonfinite);
}

}  // namespace ringfill::gpu
