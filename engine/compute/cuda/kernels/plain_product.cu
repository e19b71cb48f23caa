#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/element.h"
#include "engine/compute/cuda/kernels/plain_product.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kRows = 16;        // of a warp
constexpr int kColumnTiles = 4;  // of 8 columns each, of a warp
constexpr int kColumns = 8 * kColumnTiles;
constexpr int kDepth = 16;  // of one tensor-core product

// Elements (row, column) and (row, column + 1) of a matrix [rows][columns]; zero outside.
RF_DEVICE unsigned LoadPair(const uint16_t* m, int64_t stride, int64_t row, int64_t rows,
                            int64_t column, int64_t columns) {
  if (row >= rows) return 0;
  const uint16_t* const at = m + row * stride + column;
  const unsigned low = column < columns ? at[0] : 0u;
  const unsigned high = column + 1 < columns ? at[1] : 0u;
  return low | high << 16;
}

template <typename T>
RF_DEVICE void StoreResult(const PlainProductArgs& args, int64_t row, int64_t column, float v) {
  if (row < args.rows && column < args.n) {
    StoreElement(static_cast<T*>(args.y) + row * args.ldy + column, v);
  }
}

// A warp takes 16 rows and 32 columns of y.
template <typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void PlainProductKernel(PlainProductArgs args) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + WarpId()) * kRows + LaneId() / 4;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kColumns;
  const int pair = LaneId() % 4 * 2;
  const uint16_t* const x = static_cast<const uint16_t*>(args.x);
  const uint16_t* const w = static_cast<const uint16_t*>(args.w);
  float sum[kColumnTiles][4];
  RF_UNROLL
  for (int t = 0; t < kColumnTiles; ++t) {
    RF_UNROLL
    for (int i = 0; i < 4; ++i) sum[t][i] = 0.0f;
  }
  for (int64_t k = 0; k < args.k; k += kDepth) {
    unsigned a[4], b[kColumnTiles][2];
    RF_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = LoadPair(x, args.ldx, row + i % 2 * 8, args.rows, k + pair + i / 2 * 8, args.k);
    }
    RF_UNROLL
    for (int t = 0; t < kColumnTiles; ++t) {
      const int64_t column = first_column + t * 8 + LaneId() / 4;
      b[t][0] = LoadPair(w, args.ldw, column, args.n, k + pair, args.k);
      b[t][1] = LoadPair(w, args.ldw, column, args.n, k + pair + 8, args.k);
    }
    MmaM16N8K16<Bf16>(sum, a, b);
  }
  RF_UNROLL
  for (int t = 0; t < kColumnTiles; ++t) {
    const int64_t column = first_column + t * 8 + pair;
    StoreResult<T>(args, row, column, sum[t][0]);
    StoreResult<T>(args, row, column + 1, sum[t][1]);
    StoreResult<T>(args, row + 8, column, sum[t][2]);
    StoreResult<T>(args, row + 8, column + 1, sum[t][3]);
  }
}

}  // namespace

int PlainProduct(const PlainProductArgs& args, KernelStream stream) {
  if (args.rows == 0 || args.n == 0) return cudaSuccess;
  constexpr int64_t kBlockRows = kWarps * kRows;
  const dim3 grid(static_cast<unsigned>((args.rows + kBlockRows - 1) / kBlockRows),
                  static_cast<unsigned>((args.n + kColumns - 1) / kColumns));
  if (args.y_type == Element::kF32) {
    return Launch(PlainProductKernel<float>, grid, dim3(kThreads), 0, stream, args);
  }
  if (args.y_type == Element::kBF16) {
    return Launch(PlainProductKernel<Bf16>, grid, dim3(kThreads), 0, stream, args);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ringfill::gpu
