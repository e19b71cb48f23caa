#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/element.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/softmax.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / kWarpLanes;  // a warp takes a row

RF_DEVICE int64_t RowOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + WarpId();
}

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void ClearKernel(SoftmaxArrays state, int64_t rows,
                                                      int head_dim) {
  const int64_t row = RowOfWarp();
  if (row >= rows) return;
  if (LaneId() == 0) {
    state.max[row] = -kInfinity;
    state.sum[row] = 0.0f;
  }
  for (int d = LaneId(); d < head_dim; d += kWarpLanes) state.acc[row * head_dim + d] = 0.0f;
}

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void MergeKernel(SoftmaxArrays from, SoftmaxArrays into,
                                                      int64_t rows, int head_dim) {
  const int64_t row = RowOfWarp();
  if (row >= rows) return;
  const float from_sum = from.sum[row], into_sum = into.sum[row];
  if (from_sum == 0.0f) return;
  const float from_max = from.max[row];
  const float into_max = into_sum == 0.0f ? -kInfinity : into.max[row];
  const float max = fmaxf(from_max, into_max);
  const float scale_from = Exp2(from_max - max);
  const float scale_into = into_sum == 0.0f ? 0.0f : Exp2(into_max - max);
  // All lanes have read what lane 0 overwrites.
  SyncWarp();
  if (LaneId() == 0) {
    into.max[row] = max;
    into.sum[row] = into_sum * scale_into + from_sum * scale_from;
  }
  for (int d = LaneId(); d < head_dim; d += kWarpLanes) {
    const int64_t i = row * head_dim + d;
    into.acc[i] = into.acc[i] * scale_into + from.acc[i] * scale_from;
  }
}

template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void NormalizeKernel(NormalizeArgs args) {
  const int64_t out_row = RowOfWarp();  // token * heads + head
  const int heads = args.kv_heads * args.group;
  if (out_row >= args.tokens * heads) return;
  const int64_t token = out_row / heads;
  const int head = static_cast<int>(out_row % heads);
  const int64_t row = (head / args.group * args.tokens + token) * args.group + head % args.group;
  float max = -kInfinity, sum = 0.0f;
  for (int part = 0; part < args.parts; ++part) {
    const float part_sum = args.sum[part * args.part_stride + row];
    if (part_sum == 0.0f) continue;
    const float part_max = args.max[part * args.part_stride + row];
    const float merged = fmaxf(max, part_max);
    sum = (sum == 0.0f ? 0.0f : sum * Exp2(max - merged)) + part_sum * Exp2(part_max - merged);
    max = merged;
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  T* const out = static_cast<T*>(args.out) + out_row * args.head_dim;
  for (int d = LaneId(); d < args.head_dim; d += kWarpLanes) {
    float acc = 0.0f;
    for (int part = 0; part < args.parts; ++part) {
      const int64_t at = part * args.part_stride;
      if (args.sum[at + row] == 0.0f) continue;
      acc += args.acc[at + row * args.head_dim + d] * Exp2(args.max[at + row] - max);
    }
    StoreElement(out + d, acc * inverse);
  }
}

template <typename T>
int LaunchNormalize(const NormalizeArgs& args, KernelStream stream) {
  const int64_t rows = args.tokens * args.kv_heads * args.group;
  return Launch(NormalizeKernel<T>, BlocksOf(rows, kRowsPerBlock), dim3(kThreads), 0, stream, args);
}

}  // namespace

int ClearStates(const SoftmaxArrays& state, int64_t rows, int head_dim, KernelStream stream) {
  if (rows == 0) return cudaSuccess;
  return Launch(ClearKernel, BlocksOf(rows, kRowsPerBlock), dim3(kThreads), 0, stream, state, rows,
                head_dim);
}

int MergeStates(const SoftmaxArrays& from, const SoftmaxArrays& into, int64_t rows, int head_dim,
                KernelStream stream) {
  if (rows == 0) return cudaSuccess;
  return Launch(MergeKernel, BlocksOf(rows, kRowsPerBlock), dim3(kThreads), 0, stream, from, into,
                rows, head_dim);
}

int NormalizeStates(const NormalizeArgs& args, KernelStream stream) {
  if (args.tokens == 0) return cudaSuccess;
  return RF_FOR_ELEMENT(args.out_type, LaunchNormalize, args, stream);
}

}  // namespace ringfill::gpu
