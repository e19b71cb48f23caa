#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/element.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/weights.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockWeights = 32;
// A thread expands this many weights, a fourth of a block.
constexpr int kEach = 8;

template <StoredWeight kType>
struct StoredBlock;
template <>
struct StoredBlock<StoredWeight::kQ4_0> {
  static constexpr int kBytes = 18;
};
template <>
struct StoredBlock<StoredWeight::kQ4_1> {
  static constexpr int kBytes = 20;
};
template <>
struct StoredBlock<StoredWeight::kQ8_0> {
  static constexpr int kBytes = 34;
};

RF_DEVICE float LoadHalf(const unsigned char* p) {
  return Widen(F16{*reinterpret_cast<const uint16_t*>(p)});
}

// Weights [8 * part, 8 * part + 8) of a block; part 0 to 3. Blocks are aligned to 2 bytes.
template <StoredWeight kType>
RF_DEVICE void ExpandPart(const unsigned char* block, int part, float (&out)[kEach]) {
  const float d = LoadHalf(block);
  if constexpr (kType == StoredWeight::kQ8_0) {
    const uint16_t* pairs = reinterpret_cast<const uint16_t*>(block + 2 + part * kEach);
    RF_UNROLL
    for (int i = 0; i < kEach / 2; ++i) {
      const unsigned pair = pairs[i];
      out[2 * i] = d * static_cast<float>(static_cast<int8_t>(pair & 0xffu));
      out[2 * i + 1] = d * static_cast<float>(static_cast<int8_t>(pair >> 8));
    }
  } else {
    constexpr bool kHasMinimum = kType == StoredWeight::kQ4_1;
    const float m = kHasMinimum ? LoadHalf(block + 2) : -8.0f * d;
    // The low nibbles of 16 bytes, then the high ones.
    const uint16_t* pairs =
        reinterpret_cast<const uint16_t*>(block + (kHasMinimum ? 4 : 2) + part % 2 * kEach);
    const int shift = part / 2 * 4;
    RF_UNROLL
    for (int i = 0; i < kEach / 2; ++i) {
      const unsigned pair = static_cast<unsigned>(pairs[i]) >> shift;
      out[2 * i] = d * static_cast<float>(pair & 15u) + m;
      out[2 * i + 1] = d * static_cast<float>(pair >> 8 & 15u) + m;
    }
  }
}

template <StoredWeight kType>
RF_DEVICE float ExpandOne(const unsigned char* p, int64_t i) {
  if constexpr (kType == StoredWeight::kF32) {
    return reinterpret_cast<const float*>(p)[i];
  } else if constexpr (kType == StoredWeight::kF16) {
    return Widen(F16{reinterpret_cast<const uint16_t*>(p)[i]});
  } else {
    return Widen(Bf16{reinterpret_cast<const uint16_t*>(p)[i]});
  }
}

template <StoredWeight kType>
inline constexpr bool kIsPlain = kType <= StoredWeight::kBF16;

// Bytes of a row of `cols` weights.
template <StoredWeight kType>
RF_DEVICE int64_t RowBytes(int64_t cols) {
  if constexpr (kType == StoredWeight::kF32) {
    return cols * 4;
  } else if constexpr (kIsPlain<kType>) {
    return cols * 2;
  } else {
    return cols / kBlockWeights * StoredBlock<kType>::kBytes;
  }
}

struct ExpandArgs {
  const unsigned char* stored;
  int64_t cols;
  const int32_t* index;  // may be null
  int64_t rows;
  void* out;
};

// A thread takes kEach weights of a row.
template <StoredWeight kType, typename T>
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void ExpandKernel(ExpandArgs args) {
  const int64_t parts = (args.cols + kEach - 1) / kEach;  // of a row
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= parts * args.rows) return;
  const int64_t row = at / parts, first = at % parts * kEach;
  const int64_t from = args.index != nullptr ? args.index[row] : row;
  const unsigned char* stored = args.stored + from * RowBytes<kType>(args.cols);
  T* const out = static_cast<T*>(args.out) + row * args.cols + first;
  if constexpr (kIsPlain<kType>) {
    for (int i = 0; i < kEach && first + i < args.cols; ++i) {
      StoreElement(out + i, ExpandOne<kType>(stored, first + i));
    }
  } else {
    float w[kEach];
    ExpandPart<kType>(stored + first / kBlockWeights * StoredBlock<kType>::kBytes,
                      static_cast<int>(first % kBlockWeights / kEach), w);
    if constexpr (sizeof(T) == 2) {
      Store(out, uint4{Pack<T>(w[0], w[1]), Pack<T>(w[2], w[3]), Pack<T>(w[4], w[5]),
                       Pack<T>(w[6], w[7])});
    } else {
      Store(out, float4{w[0], w[1], w[2], w[3]});
      Store(out + 4, float4{w[4], w[5], w[6], w[7]});
    }
  }
}

template <StoredWeight kType>
int LaunchExpand(const ExpandArgs& args, Element out_type, KernelStream stream) {
  const dim3 grid = BlocksOf((args.cols + kEach - 1) / kEach * args.rows, kThreads);
  switch (out_type) {
    case Element::kF32:
      return Launch(ExpandKernel<kType, float>, grid, dim3(kThreads), 0, stream, args);
    case Element::kBF16:
      return Launch(ExpandKernel<kType, Bf16>, grid, dim3(kThreads), 0, stream, args);
    case Element::kF16:
      return Launch(ExpandKernel<kType, F16>, grid, dim3(kThreads), 0, stream, args);
  }
  return cudaErrorInvalidValue;
}

int Expand(StoredWeight type, const ExpandArgs& args, Element out_type, KernelStream stream) {
  if (args.cols * args.rows == 0) return cudaSuccess;
  switch (type) {
    case StoredWeight::kF32:
      return LaunchExpand<StoredWeight::kF32>(args, out_type, stream);
    case StoredWeight::kF16:
      return LaunchExpand<StoredWeight::kF16>(args, out_type, stream);
    case StoredWeight::kBF16:
      return LaunchExpand<StoredWeight::kBF16>(args, out_type, stream);
    case StoredWeight::kQ4_0:
      return LaunchExpand<StoredWeight::kQ4_0>(args, out_type, stream);
    case StoredWeight::kQ4_1:
      return LaunchExpand<StoredWeight::kQ4_1>(args, out_type, stream);
    case StoredWeight::kQ8_0:
      return LaunchExpand<StoredWeight::kQ8_0>(args, out_type, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int ExpandWeights(StoredWeight type, const std::byte* stored, int64_t n, Element out_type,
                  void* out, KernelStream stream) {
  return Expand(type, {reinterpret_cast<const unsigned char*>(stored), n, nullptr, 1, out},
                out_type, stream);
}

int ExpandRows(StoredWeight type, const std::byte* stored, int64_t cols, const int32_t* index,
               int64_t rows, Element out_type, void* out, KernelStream stream) {
  return Expand(type, {reinterpret_cast<const unsigned char*>(stored), cols, index, rows, out},
                out_type, stream);
}

}  // namespace ringfill::gpu
