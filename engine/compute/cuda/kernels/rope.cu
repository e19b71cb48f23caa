#include <math.h>

#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/element.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/rope.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 256;

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void RopeAnglesKernel(const int64_t* position, int64_t rows,
                                                           const double* frequency, int pairs,
                                                           float* angles) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * pairs) return;
  const double angle = static_cast<double>(position[at / pairs]) * frequency[at % pairs];
  angles[2 * at] = static_cast<float>(cos(angle));
  angles[2 * at + 1] = static_cast<float>(sin(angle));
}

struct Pair {
  float even;
  float odd;
};

// Dimensions d and d + 1 of one head, turned by the row's angles.
RF_DEVICE Pair Rotated(const float* head, const float* angles, int rope_dims, int d) {
  const Pair in = {head[d], head[d + 1]};
  if (d >= rope_dims) return in;
  const float c = angles[d], s = angles[d + 1];
  return {in.even * c - in.odd * s, in.even * s + in.odd * c};
}

template <typename T>
RF_DEVICE void StorePair(T* to, Pair v) {
  StoreElement(to, v.even);
  StoreElement(to + 1, v.odd);
}

// One K or V head of a row to where the row's target says.
template <typename T>
RF_DEVICE void StoreKvPair(const RotateAndStoreArgs& args, const KvTarget& target, bool is_v,
                           int kv_head, int d, Pair v) {
  if (target.page != KvTarget::kNoPage) {
    const int64_t block = static_cast<int64_t>(args.pages.page_tokens) * args.head_dim;
    std::byte* const page = args.pages.base +
                            static_cast<int64_t>(target.page) * args.pages.page_stride +
                            (is_v ? args.pages.v_offset : args.pages.k_offset);
    StorePair(reinterpret_cast<T*>(page) + kv_head * block +
                  static_cast<int64_t>(target.token_in_page) * args.head_dim + d,
              v);
  }
  if (target.outbox_slot >= 0) {
    const int64_t width = static_cast<int64_t>(args.kv_heads) * args.head_dim;
    StorePair(reinterpret_cast<T*>(args.outbox) +
                  (target.outbox_slot * 2 + (is_v ? 1 : 0)) * width + kv_head * args.head_dim + d,
              v);
  }
}

// A block takes a row, a thread a pair of dimensions at a time.
template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void RotateAndStoreKernel(RotateAndStoreArgs args,
                                                               float scale) {
  const int64_t row = blockIdx.x;
  const float* const angles = args.angles + row * args.rope_dims;
  const int pairs = args.head_dim / 2;  // of a head
  const int heads = args.kv_heads * args.group;
  const float* const q = args.q + row * args.q_stride;
  for (int i = static_cast<int>(threadIdx.x); args.packed_q != nullptr && i < heads * pairs;
       i += kThreads) {
    const int head = i / pairs, d = i % pairs * 2;
    const Pair v = Rotated(q + head * args.head_dim, angles, args.rope_dims, d);
    const int64_t packed =
        (head / args.group * args.all_rows + args.first_row + row) * args.group + head % args.group;
    StorePair(static_cast<T*>(args.packed_q) + packed * args.head_dim + d,
              {v.even * scale, v.odd * scale});
  }
  if (args.targets == nullptr) return;
  const KvTarget target = args.targets[row];
  const float* const k = args.k + row * args.kv_stride;
  const float* const v = args.v + row * args.kv_stride;
  for (int i = static_cast<int>(threadIdx.x); i < args.kv_heads * pairs; i += kThreads) {
    const int head = i / pairs, d = i % pairs * 2;
    const int at = head * args.head_dim;
    StoreKvPair<T>(args, target, false, head, d, Rotated(k + at, angles, args.rope_dims, d));
    StoreKvPair<T>(args, target, true, head, d, {v[at + d], v[at + d + 1]});
  }
}

template <typename T>
int LaunchRotate(const RotateAndStoreArgs& args, KernelStream stream) {
  // As PackQueries has it.
  constexpr double kLog2E = 1.44269504088896340736;
  const float scale = static_cast<float>(kLog2E / sqrt(static_cast<double>(args.head_dim)));
  return Launch(RotateAndStoreKernel<T>, BlocksOf(args.rows, 1), dim3(kThreads), 0, stream, args,
                scale);
}

}  // namespace

int RopeAngles(const int64_t* position, int64_t rows, const double* frequency, int rope_dims,
               float* angles, KernelStream stream) {
  const int pairs = rope_dims / 2;
  if (rows * pairs == 0) return cudaSuccess;
  return Launch(RopeAnglesKernel, BlocksOf(rows * pairs, kThreads), dim3(kThreads), 0, stream,
                position, rows, frequency, pairs, angles);
}

int RotateAndStore(const RotateAndStoreArgs& args, KernelStream stream) {
  if (args.rows == 0) return cudaSuccess;
  return RF_FOR_ELEMENT(args.type, LaunchRotate, args, stream);
}

}  // namespace ringfill::gpu
