#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_tile.h"
#include "engine/compute/cuda/kernels/note_nonfinite.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 128;

template <int kHeadDim>
struct PrefillShape {
  using Tile = TileShape<kHeadDim>;
  static constexpr bool kQueryInRegisters = kHeadDim <= 128;
  static constexpr int kKeys = kHeadDim <= 128 ? kPrefillKeys : kPrefillKeys / 2;
  static constexpr int kTileBytes = kKeys * Tile::kStride;
  static constexpr int kQueryBytes = kPrefillRows * Tile::kStride;
  // Two stages of K and V; queries that end in registers pass through the second stage.
  static constexpr int kQueryOffset = kQueryInRegisters ? 2 * kTileBytes : 4 * kTileBytes;
  static constexpr int kSharedBytes =
      kQueryInRegisters ? 4 * kTileBytes : 4 * kTileBytes + kQueryBytes;
  static_assert(kQueryOffset + kQueryBytes <= kSharedBytes);
  static_assert(kSharedBytes == PrefillSharedBytes(kHeadDim));
};

// One lane's two rows.
struct LaneRows {
  int64_t state_row[2];  // in [kv_heads][tokens * group]; -1: no such row
  int64_t visible[2];
  int64_t begin[2];
};

RF_DEVICE LaneRows RowsOfLane(const AttentionArgs& args, const PrefillWork& work, int kv_head) {
  LaneRows rows;
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = WarpId() * 16 + LaneId() / 4 + 8 * half;
    rows.state_row[half] = -1;
    rows.visible[half] = 0;
    rows.begin[half] = 0;
    if (row >= work.rows) continue;
    const int64_t token = (work.row + row) / args.group;
    rows.state_row[half] = kv_head * args.tokens * args.group + work.row + row;
    rows.visible[half] = args.visible[token];
    if (args.begin != nullptr) rows.begin[half] = args.begin[token];
  }
  return rows;
}

template <int kHeadDim>
RF_DEVICE void LoadState(const AttentionArgs& args, const LaneRows& rows,
                         WarpState<kHeadDim>& state) {
  ClearState(state);
  if (args.clear) return;
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t row = rows.state_row[half];
    if (row < 0 || args.state.sum[row] == 0.0f) continue;
    state.max[half] = args.state.max[row];
    state.sum[half] = args.state.sum[row];
    const float* acc = args.state.acc + row * kHeadDim + LaneId() % 4 * 2;
    RF_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float2 pair = Load<float2>(acc + n * 8);
      state.acc[n][2 * half] = pair.x;
      state.acc[n][2 * half + 1] = pair.y;
    }
  }
}

// True when one of the lane's values is not finite.
template <int kHeadDim>
RF_DEVICE bool StoreState(const AttentionArgs& args, const LaneRows& rows,
                          const WarpState<kHeadDim>& state) {
  bool bad = false;
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t row = rows.state_row[half];
    if (row < 0) continue;
    if (LaneId() % 4 == 0) {
      args.state.max[row] = state.max[half];
      args.state.sum[row] = state.sum[half];
    }
    bad |= !IsFinite(state.sum[half]);
    float* acc = args.state.acc + row * kHeadDim + LaneId() % 4 * 2;
    RF_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float2 pair = make_float2(state.acc[n][2 * half], state.acc[n][2 * half + 1]);
      bad |= !IsFinite(pair.x) || !IsFinite(pair.y);
      Store(acc + n * 8, pair);
    }
  }
  return bad;
}

// Queues the copies of the item's queries; rows that it has not become zeros.
template <int kHeadDim>
RF_DEVICE void LoadQueries(const AttentionArgs& args, const PrefillWork& work, int kv_head,
                           unsigned char* tile) {
  using Tile = TileShape<kHeadDim>;
  static_assert(kPrefillRows * Tile::kChunks % kThreads == 0);
  const unsigned char* first = static_cast<const unsigned char*>(args.q) +
                               (kv_head * args.tokens * args.group + work.row) * Tile::kRowBytes;
  RF_UNROLL
  for (int i = 0; i < kPrefillRows * Tile::kChunks / kThreads; ++i) {
    const int copy = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = copy / Tile::kChunks;
    const int column = copy % Tile::kChunks * 16;
    const bool in = row < work.rows;
    CpAsync16(tile + row * Tile::kStride + column,
              first + (in ? row : 0) * Tile::kRowBytes + column, in ? 16 : 0);
  }
}

RF_DEVICE int Within(int64_t key, int64_t first, int keys) {
  const int64_t at = key - first;
  return at <= 0 ? 0 : at >= keys ? keys : static_cast<int>(at);
}

// A block takes one work item under one KV head, a warp 16 of its rows, all keys in order. More
// blocks to a multiprocessor than said here would have to spill registers.
template <typename T, int kHeadDim>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads, kHeadDim == 64 ? 3 : 2) void PrefillKernel(PrefillArgs args) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys;
  RF_DYNAMIC_SHARED(shared);
  const AttentionArgs& attention = args.attention;
  const PrefillWork work = args.work[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  if (work.rows == 0) return;
  const int64_t end = attention.visible[(work.row + work.rows - 1) / attention.group];
  const int64_t begin =
      attention.begin == nullptr ? 0 : attention.begin[work.row / attention.group];
  const int64_t first_tile = begin / kKeys;
  const int64_t end_tile = (end + kKeys - 1) / kKeys;
  const LaneRows rows = RowsOfLane(attention, work, kv_head);
  WarpState<kHeadDim> state;
  LoadState(attention, rows, state);
  if (first_tile < end_tile) {
    const HeadPages pages = PagesOfHead(attention, work.run, kv_head, Shape::Tile::kRowBytes);
    LoadQueries<kHeadDim>(attention, work, kv_head, shared + Shape::kQueryOffset);
    CpAsyncCommit();
    LoadKeys<kHeadDim, kKeys, kThreads>(pages, static_cast<unsigned>(first_tile * kKeys),
                                        static_cast<unsigned>(end), shared,
                                        shared + Shape::kTileBytes);
    CpAsyncCommit();
    CpAsyncWait<1>();
    SyncThreads();
    QueryFragments<kHeadDim, Shape::kQueryInRegisters> query;
    query.Load(shared + Shape::kQueryOffset + WarpId() * 16 * Shape::Tile::kStride);
    for (int64_t tile = first_tile; tile < end_tile; ++tile) {
      CpAsyncWait<0>();
      // The tile is there for all, and nobody reads the stage that is filled next any more.
      SyncThreads();
      unsigned char* stage = shared + (tile - first_tile) % 2 * (2 * Shape::kTileBytes);
      const int64_t first_key = tile * kKeys;
      if (tile + 1 < end_tile) {
        unsigned char* next = shared + (tile - first_tile + 1) % 2 * (2 * Shape::kTileBytes);
        LoadKeys<kHeadDim, kKeys, kThreads>(pages, static_cast<unsigned>(first_key + kKeys),
                                            static_cast<unsigned>(end), next,
                                            next + Shape::kTileBytes);
        CpAsyncCommit();
      }
      int from[2], to[2];
      RF_UNROLL
      for (int half = 0; half < 2; ++half) {
        from[half] = Within(rows.begin[half], first_key, kKeys);
        to[half] = Within(rows.visible[half], first_key, kKeys);
      }
      const bool sees = from[0] < to[0] || from[1] < to[1];
      if (!Any(sees)) continue;
      float scores[kKeys / 8][4];
      Scores<T, kHeadDim, kKeys>(query, stage, scores);
      const bool all = from[0] == 0 && from[1] == 0 && to[0] == kKeys && to[1] == kKeys;
      if (!All(all)) Mask<kKeys>(from, to, scores);
      UpdateSoftmax<kHeadDim, kKeys>(state, scores);
      AddValues<T, kHeadDim, kKeys>(scores, stage + Shape::kTileBytes, state);
    }
  }
  const bool bad = StoreState(attention, rows, state);
  if (args.nonfinite != nullptr && bad) SetBit(args.nonfinite, work.bit);
}

template <typename T, int kHeadDim>
int LaunchPrefill(const PrefillArgs& args, KernelStream stream) {
  const dim3 grid(static_cast<unsigned>(args.works),
                  static_cast<unsigned>(args.attention.kv_heads));
  return Launch(PrefillKernel<T, kHeadDim>, grid, dim3(kThreads),
                PrefillShape<kHeadDim>::kSharedBytes, stream, args);
}

template <typename T>
int LaunchPrefillOf(const PrefillArgs& args, KernelStream stream) {
  switch (args.attention.head_dim) {
    case 64:
      return LaunchPrefill<T, 64>(args, stream);
    case 80:
      return LaunchPrefill<T, 80>(args, stream);
    case 96:
      return LaunchPrefill<T, 96>(args, stream);
    case 128:
      return LaunchPrefill<T, 128>(args, stream);
    case 256:
      return LaunchPrefill<T, 256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

int AttendPrefill(const PrefillArgs& args, KernelStream stream) {
  if (args.works == 0) return cudaSuccess;
  if (args.attention.type == Element::kBF16) return LaunchPrefillOf<Bf16>(args, stream);
  if (args.attention.type == Element::kF16) return LaunchPrefillOf<F16>(args, stream);
  return cudaErrorInvalidValue;
}

}  // namespace ringfill::gpu
