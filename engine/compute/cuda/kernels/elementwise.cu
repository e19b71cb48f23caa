#include <math.h>

#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/block_reduce.h"
#include "engine/compute/cuda/kernels/element.h"
#include "engine/compute/cuda/kernels/elementwise.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/note_nonfinite.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 256;

RF_DEVICE int64_t Index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

// A block takes a row.
template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void RmsNormKernel(RmsNormArgs args) {
  RF_SHARED(float, scratch, kThreads / kWarpLanes);
  const int64_t row = blockIdx.x;
  float* const x = args.x + (args.row_index != nullptr ? args.row_index[row] : row) * args.n;
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) {
    float v = x[i];
    if (args.add != nullptr) {
      v += args.add[row * args.n + i];
      x[i] = v;
    }
    squares += v * v;
  }
  const float sum = BlockReduce<kThreads>(squares, SumOp(), scratch);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.n) + args.epsilon);
  T* const out = static_cast<T*>(args.out) + row * args.n;
  // Each thread reads again what it wrote itself.
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) {
    StoreElement(out + i, x[i] * scale * args.weight[i]);
  }
}

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void AddPartsKernel(float* x, const float* parts, int count,
                                                         int64_t n) {
  const int64_t i = Index();
  if (i >= n) return;
  float v = x[i];
  for (int part = 0; part < count; ++part) v += parts[part * n + i];
  x[i] = v;
}

template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void SiluMulKernel(SiluMulArgs args) {
  const int64_t i = Index();
  if (i >= args.rows * args.n) return;
  const int64_t row = i / args.n, column = i % args.n;
  const int64_t at = row * args.gate_stride + column;
  const float gate = Widen(static_cast<const T*>(args.gate)[at]);
  const float up = Widen(static_cast<const T*>(args.up)[at]);
  StoreElement(static_cast<T*>(args.out) + row * args.out_stride + column,
               gate / (1.0f + expf(-gate)) * up);
}

template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void ConvertKernel(const float* x, int64_t n, T* out) {
  const int64_t i = Index();
  if (i < n) StoreElement(out + i, x[i]);
}

RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void JoinSlicesKernel(SlicesArgs args) {
  const int64_t i = Index();
  if (i >= args.tokens * args.width) return;
  const int64_t token = i / args.width, column = i % args.width;
  // The rank whose slice holds the column: a first guess, at most one too small.
  int64_t rank = column * args.ranks / args.width;
  while (args.width * (rank + 1) / args.ranks <= column) ++rank;
  const int64_t within = column - args.width * rank / args.ranks;
  const float v = args.gathered[rank * args.part_stride + token * args.stride + within];
  args.out[i] = args.add ? args.out[i] + v : v;
}

// A block takes a row.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void NoteNonFiniteKernel(const float* x, int64_t n,
                                                              const int32_t* chunk,
                                                              unsigned long long* mask) {
  const int64_t row = blockIdx.x;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) bad |= !IsFinite(x[row * n + i]);
  if (bad) SetBit(mask, chunk[row]);
}

// A block takes a token.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void NoteFaultsKernel(NoteFaultsArgs args) {
  const int64_t token = blockIdx.x;
  const float* const x = args.x + token * args.token_stride;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < args.pieces * args.floats; i += kThreads) {
    bad |= !IsFinite(x[i / args.floats * args.piece_stride + i % args.floats]);
  }
  if (bad) (void)AtomicCas(args.first + token, 0u, args.place);
}

template <typename T>
int LaunchRmsNorm(const RmsNormArgs& args, KernelStream stream) {
  return Launch(RmsNormKernel<T>, BlocksOf(args.rows, 1), dim3(kThreads), 0, stream, args);
}

template <typename T>
int LaunchSiluMul(const SiluMulArgs& args, KernelStream stream) {
  return Launch(SiluMulKernel<T>, BlocksOf(args.rows * args.n, kThreads), dim3(kThreads), 0, stream,
                args);
}

template <typename T>
int LaunchConvert(const float* x, int64_t n, void* out, KernelStream stream) {
  return Launch(ConvertKernel<T>, BlocksOf(n, kThreads), dim3(kThreads), 0, stream, x, n,
                static_cast<T*>(out));
}

}  // namespace

int RmsNorm(const RmsNormArgs& args, KernelStream stream) {
  if (args.rows == 0) return cudaSuccess;
  return RF_FOR_ELEMENT(args.out_type, LaunchRmsNorm, args, stream);
}

int AddFloats(float* x, const float* y, int64_t n, KernelStream stream) {
  return AddParts(x, y, 1, n, stream);
}

int SiluMul(const SiluMulArgs& args, KernelStream stream) {
  if (args.rows * args.n == 0) return cudaSuccess;
  return RF_FOR_ELEMENT(args.type, LaunchSiluMul, args, stream);
}

int ConvertFloats(const float* x, int64_t n, Element type, void* out, KernelStream stream) {
  if (n == 0) return cudaSuccess;
  return RF_FOR_ELEMENT(type, LaunchConvert, x, n, out, stream);
}

int JoinSlices(const SlicesArgs& args, KernelStream stream) {
  if (args.tokens * args.width == 0) return cudaSuccess;
  return Launch(JoinSlicesKernel, BlocksOf(args.tokens * args.width, kThreads), dim3(kThreads), 0,
                stream, args);
}

int AddParts(float* x, const float* parts, int count, int64_t n, KernelStream stream) {
  if (n == 0 || count == 0) return cudaSuccess;
  return Launch(AddPartsKernel, BlocksOf(n, kThreads), dim3(kThreads), 0, stream, x, parts, count,
                n);
}

int NoteNonFinite(const float* x, int64_t rows, int64_t n, const int32_t* chunk,
                  unsigned long long* mask, KernelStream stream) {
  if (rows == 0) return cudaSuccess;
  return Launch(NoteNonFiniteKernel, BlocksOf(rows, 1), dim3(kThreads), 0, stream, x, n, chunk,
                mask);
}

int NoteFaults(const NoteFaultsArgs& args, KernelStream stream) {
  if (args.tokens * args.pieces * args.floats == 0) return cudaSuccess;
  return Launch(NoteFaultsKernel, BlocksOf(args.tokens, 1), dim3(kThreads), 0, stream, args);
}

}  // namespace ringfill::gpu
