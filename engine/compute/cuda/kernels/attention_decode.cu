#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_tile.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kWarpKeys = 16;  // of a tile, each warp looks at this many

template <int kHeadDim>
struct DecodeShape {
  using Tile = TileShape<kHeadDim>;
  static constexpr int kWarps = kHeadDim <= 128 ? 4 : 2;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kKeys = kWarps * kWarpKeys;
  static constexpr int kTileBytes = kKeys * Tile::kStride;
  // Queries that end in registers pass through the second stage.
  static constexpr bool kQueryInRegisters = kHeadDim <= 128;
  static constexpr int kQueryBytes = kDecodeRows * Tile::kStride;
  static constexpr int kQueryOffset = kQueryInRegisters ? 2 * kTileBytes : 4 * kTileBytes;
  static constexpr int kSharedBytes = 4 * kTileBytes + (kQueryInRegisters ? 0 : kQueryBytes);
  // The warps' states at the end, in place of the tiles.
  static constexpr int kStateFloats = kDecodeRows * (kHeadDim + 2);
  static_assert(kWarps * kStateFloats * 4 <= kSharedBytes);
  static_assert(kQueryOffset + kQueryBytes <= kSharedBytes);
  static_assert(kSharedBytes == DecodeSharedBytes(kHeadDim));
};

template <int kHeadDim>
RF_DEVICE void LoadQueries(const AttentionArgs& args, const DecodeWork& work, int kv_head,
                           unsigned char* tile) {
  using Tile = TileShape<kHeadDim>;
  const unsigned char* first = static_cast<const unsigned char*>(args.q) +
                               (kv_head * args.tokens * args.group + work.row) * Tile::kRowBytes;
  for (int copy = static_cast<int>(threadIdx.x); copy < kDecodeRows * Tile::kChunks;
       copy += DecodeShape<kHeadDim>::kThreads) {
    const int row = copy / Tile::kChunks;
    const int column = copy % Tile::kChunks * 16;
    const bool in = row < work.rows;
    CpAsync16(tile + row * Tile::kStride + column,
              first + (in ? row : 0) * Tile::kRowBytes + column, in ? 16 : 0);
  }
}

// A state in shared memory: max and sum [kDecodeRows], acc [kDecodeRows][head_dim].
struct SharedState {
  float* max;
  float* sum;
  float* acc;
};

template <int kHeadDim>
RF_DEVICE SharedState StateOfWarp(unsigned char* shared, int warp) {
  float* at = reinterpret_cast<float*>(shared) + warp * DecodeShape<kHeadDim>::kStateFloats;
  return {at, at + kDecodeRows, at + 2 * kDecodeRows};
}

template <int kHeadDim>
RF_DEVICE void ShareState(const WarpState<kHeadDim>& state, const SharedState& to) {
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = LaneId() / 4 + 8 * half;
    if (LaneId() % 4 == 0) {
      to.max[row] = state.max[half];
      to.sum[row] = state.sum[half];
    }
    float* acc = to.acc + row * kHeadDim + LaneId() % 4 * 2;
    RF_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      acc[n * 8] = state.acc[n][2 * half];
      acc[n * 8 + 1] = state.acc[n][2 * half + 1];
    }
  }
}

struct MergedScale {
  float max = -kInfinity;
  float sum = 0.0f;

  RF_DEVICE void Add(float part_max, float part_sum) {
    if (part_sum == 0.0f) return;
    const float merged = fmaxf(max, part_max);
    sum = (sum == 0.0f ? 0.0f : sum * Exp2(max - merged)) + part_sum * Exp2(part_max - merged);
    max = merged;
  }
  // What a part's accumulator is multiplied with, once all are added.
  RF_DEVICE float Of(float part_max, float part_sum) const {
    return part_sum == 0.0f ? 0.0f : Exp2(part_max - max);
  }
};

// The warps' states merge in the order of warps and go to the work item's part, or merge with the
// rows' own state.
template <int kHeadDim>
RF_DEVICE void WriteMerged(const DecodeArgs& args, const DecodeWork& work, int kv_head,
                           unsigned char* shared) {
  using Shape = DecodeShape<kHeadDim>;
  const AttentionArgs& attention = args.attention;
  const bool own = work.part < 0;
  const SoftmaxArrays& out = own ? attention.state : args.parts;
  const int64_t first =
      own ? kv_head * attention.tokens * attention.group + work.row
          : (static_cast<int64_t>(work.part) * attention.kv_heads + kv_head) * kDecodeRows;
  const bool carry = own && !attention.clear;
  for (int row = WarpId(); row < work.rows; row += Shape::kWarps) {
    const int64_t at = first + row;
    MergedScale merged;
    const float old_max = carry ? out.max[at] : 0.0f;
    const float old_sum = carry ? out.sum[at] : 0.0f;
    merged.Add(old_max, old_sum);
    RF_UNROLL
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      const SharedState state = StateOfWarp<kHeadDim>(shared, warp);
      merged.Add(state.max[row], state.sum[row]);
    }
    const float old_scale = merged.Of(old_max, old_sum);
    SyncWarp();
    if (LaneId() == 0) {
      out.max[at] = merged.max;
      out.sum[at] = merged.sum;
    }
    for (int d = LaneId(); d < kHeadDim; d += kWarpLanes) {
      float acc = old_scale == 0.0f ? 0.0f : out.acc[at * kHeadDim + d] * old_scale;
      RF_UNROLL
      for (int warp = 0; warp < Shape::kWarps; ++warp) {
        const SharedState state = StateOfWarp<kHeadDim>(shared, warp);
        acc += state.acc[row * kHeadDim + d] * merged.Of(state.max[row], state.sum[row]);
      }
      out.acc[at * kHeadDim + d] = acc;
    }
  }
}

RF_DEVICE int Within(int64_t key, int64_t first) {
  const int64_t at = key - first;
  return at <= 0 ? 0 : at >= kWarpKeys ? kWarpKeys : static_cast<int>(at);
}

// A block takes one work item under one KV head; each warp looks at its own 16 keys of every tile.
template <typename T, int kHeadDim>
RF_KERNEL RF_LAUNCH_BOUNDS(DecodeShape<kHeadDim>::kThreads) void DecodeKernel(DecodeArgs args) {
  using Shape = DecodeShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys;
  RF_DYNAMIC_SHARED(shared);
  const AttentionArgs& attention = args.attention;
  const DecodeWork work = args.work[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  if (work.rows == 0) return;
  int64_t visible[2], begin[2];
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = LaneId() / 4 + 8 * half;
    const bool in = row < work.rows;
    const int64_t token = (work.row + (in ? row : 0)) / attention.group;
    visible[half] = in ? attention.visible[token] : 0;
    begin[half] = in && attention.begin != nullptr ? attention.begin[token] : 0;
    if (visible[half] > work.end_key) visible[half] = work.end_key;
  }
  const int64_t last = attention.visible[(work.row + work.rows - 1) / attention.group];
  const int64_t end = last < work.end_key ? last : work.end_key;
  int64_t first = work.first_key;
  if (attention.begin != nullptr) {
    const int64_t unseen = attention.begin[work.row / attention.group] - first;
    if (unseen > 0) first += unseen / kKeys * kKeys;
  }
  WarpState<kHeadDim> state;
  ClearState(state);
  if (first < end) {
    const HeadPages pages = PagesOfHead(attention, work.run, kv_head, Shape::Tile::kRowBytes);
    LoadQueries<kHeadDim>(attention, work, kv_head, shared + Shape::kQueryOffset);
    CpAsyncCommit();
    LoadKeys<kHeadDim, kKeys, Shape::kThreads>(pages, static_cast<unsigned>(first),
                                               static_cast<unsigned>(end), shared,
                                               shared + Shape::kTileBytes);
    CpAsyncCommit();
    CpAsyncWait<1>();
    SyncThreads();
    QueryFragments<kHeadDim, Shape::kQueryInRegisters> query;
    query.Load(shared + Shape::kQueryOffset);
    int stage = 0;
    for (int64_t tile = first; tile < end; tile += kKeys, stage ^= 1) {
      CpAsyncWait<0>();
      SyncThreads();
      if (tile + kKeys < end) {
        unsigned char* next = shared + (stage ^ 1) * (2 * Shape::kTileBytes);
        LoadKeys<kHeadDim, kKeys, Shape::kThreads>(pages, static_cast<unsigned>(tile + kKeys),
                                                   static_cast<unsigned>(end), next,
                                                   next + Shape::kTileBytes);
        CpAsyncCommit();
      }
      const int64_t mine = tile + WarpId() * kWarpKeys;
      int from[2], to[2];
      RF_UNROLL
      for (int half = 0; half < 2; ++half) {
        from[half] = Within(begin[half], mine);
        to[half] = Within(visible[half], mine);
      }
      if (!Any(from[0] < to[0] || from[1] < to[1])) continue;
      const unsigned char* k_tile =
          shared + stage * (2 * Shape::kTileBytes) + WarpId() * kWarpKeys * Shape::Tile::kStride;
      float scores[kWarpKeys / 8][4];
      Scores<T, kHeadDim, kWarpKeys>(query, k_tile, scores);
      Mask<kWarpKeys>(from, to, scores);
      UpdateSoftmax<kHeadDim, kWarpKeys>(state, scores);
      AddValues<T, kHeadDim, kWarpKeys>(scores, k_tile + Shape::kTileBytes, state);
    }
  }
  SyncThreads();
  ShareState(state, StateOfWarp<kHeadDim>(shared, WarpId()));
  SyncThreads();
  WriteMerged<kHeadDim>(args, work, kv_head, shared);
}

constexpr int kMergeThreads = 128;

// A block merges the parts of one item's rows under one KV head, a warp a row at a time.
RF_KERNEL RF_LAUNCH_BOUNDS(kMergeThreads) void MergePartsKernel(DecodeArgs args) {
  const AttentionArgs& attention = args.attention;
  const MergeWork work = args.merge[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int dim = attention.head_dim;
  for (int row = WarpId(); row < work.rows; row += kMergeThreads / kWarpLanes) {
    const int64_t at = kv_head * attention.tokens * attention.group + work.row + row;
    const int64_t first =
        (static_cast<int64_t>(work.first_part) * attention.kv_heads + kv_head) * kDecodeRows + row;
    const int64_t stride = static_cast<int64_t>(attention.kv_heads) * kDecodeRows;
    const float old_max = attention.clear ? 0.0f : attention.state.max[at];
    const float old_sum = attention.clear ? 0.0f : attention.state.sum[at];
    MergedScale merged;
    merged.Add(old_max, old_sum);
    for (int part = 0; part < work.parts; ++part) {
      merged.Add(args.parts.max[first + part * stride], args.parts.sum[first + part * stride]);
    }
    const float old_scale = merged.Of(old_max, old_sum);
    SyncWarp();
    if (LaneId() == 0) {
      attention.state.max[at] = merged.max;
      attention.state.sum[at] = merged.sum;
    }
    for (int d = LaneId(); d < dim; d += kWarpLanes) {
      float acc = old_scale == 0.0f ? 0.0f : attention.state.acc[at * dim + d] * old_scale;
      for (int part = 0; part < work.parts; ++part) {
        const int64_t from = first + part * stride;
        acc +=
            args.parts.acc[from * dim + d] * merged.Of(args.parts.max[from], args.parts.sum[from]);
      }
      attention.state.acc[at * dim + d] = acc;
    }
  }
}

template <typename T, int kHeadDim>
int LaunchDecode(const DecodeArgs& args, KernelStream stream) {
  using Shape = DecodeShape<kHeadDim>;
  const dim3 grid(static_cast<unsigned>(args.works),
                  static_cast<unsigned>(args.attention.kv_heads));
  return Launch(DecodeKernel<T, kHeadDim>, grid, dim3(Shape::kThreads), Shape::kSharedBytes, stream,
                args);
}

template <typename T>
int LaunchDecodeOf(const DecodeArgs& args, KernelStream stream) {
  switch (args.attention.head_dim) {
    case 64:
      return LaunchDecode<T, 64>(args, stream);
    case 80:
      return LaunchDecode<T, 80>(args, stream);
    case 96:
      return LaunchDecode<T, 96>(args, stream);
    case 128:
      return LaunchDecode<T, 128>(args, stream);
    case 256:
      return LaunchDecode<T, 256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

int LaunchDecodeOf(const DecodeArgs& args, KernelStream stream) {
  if (args.attention.type == Element::kBF16) return LaunchDecodeOf<Bf16>(args, stream);
  if (args.attention.type == Element::kF16) return LaunchDecodeOf<F16>(args, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

int AttendDecode(const DecodeArgs& args, KernelStream stream) {
  if (args.works != 0) {
    const int error = LaunchDecodeOf(args, stream);
    if (error != cudaSuccess) return error;
  }
  if (args.merges == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.merges),
                  static_cast<unsigned>(args.attention.kv_heads));
  return Launch(MergePartsKernel, grid, dim3(kMergeThreads), 0, stream, args);
}

}  // namespace ringfill::gpu
