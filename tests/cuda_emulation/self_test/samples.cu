#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/launch.h"
#include "tests/cuda_emulation/self_test/samples.h"

namespace ringfill::emulation_test {
namespace {

using namespace gpu;  // NOLINT: what kernels are written with

RF_CONSTANT float kTable[4] = {1, 2, 4, 8};

RF_KERNEL void ReverseBlock(Sample sample, float* data) {
  RF_SHARED(float, tile, kSampleThreads);
  const unsigned i = threadIdx.x;
  tile[i] = data[i];
  if (sample != Sample::kNoBarrier) SyncThreads();
  data[i] = tile[kSampleThreads - 1 - i];
  if (sample == Sample::kBarrierInsideLoopLost) {
    tile[i] = 0;
    SyncThreads();
  }
}

RF_KERNEL void ReverseWarps(Sample sample, float* data) {
  RF_SHARED(float, tile, kSampleThreads);
  const unsigned i = threadIdx.x;
  tile[i] = data[i];
  switch (sample) {
    case Sample::kRightWithinWarp:
      SyncWarp();
      break;
    case Sample::kShuffleAsBarrier:
      Shuffle(data[i], 0);
      break;
    case Sample::kPartialWarpBarrier:
      SyncWarp(LaneId() < 16 ? 0x0000ffffu : 0xffff0000u);
      break;
    default:
      break;
  }
  data[i] = tile[i ^ 31];
}

RF_KERNEL void ReverseCopied(Sample sample, float* data) {
  RF_DYNAMIC_SHARED(bytes);
  auto* tile = reinterpret_cast<float*>(bytes);
  const unsigned i = threadIdx.x;
  if (sample == Sample::kCopyOverReaders) {
    tile[i] = 1;
    SyncThreads();
    data[i] += tile[kSampleThreads - 1 - i];
  }
  if (i < kSampleThreads / 4) CpAsync16(tile + 4 * i, data + 4 * i);
  if (sample != Sample::kCopyNotCommitted) CpAsyncCommit();
  if (sample == Sample::kCopyWaitTooWeak) {
    CpAsyncWait<1>();
  } else if (sample != Sample::kCopyNotWaited) {
    CpAsyncWait<0>();
  }
  if (sample != Sample::kCopyNoBarrier) SyncThreads();
  data[i] = tile[kSampleThreads - 1 - i];
}

RF_KERNEL void MatrixOfOthers(float* data) {
  RF_SHARED(unsigned, rows, 32 * 4);
  const int lane = LaneId();
  if (WarpId() != 0) return;
  // Row l was written by lane 31 - l.
  for (int i = 0; i < 4; ++i) rows[(31 - lane) * 4 + i] = static_cast<unsigned>(lane);
  unsigned r[4];
  LdMatrixX4(r, rows + lane * 4);
  data[lane] = static_cast<float>(r[0]);
}

RF_KERNEL void CountThreads(Sample sample, float* data) {
  RF_SHARED(unsigned, count, 1);
  if (threadIdx.x == 0) count[0] = 0;
  SyncThreads();
  AtomicAdd(&count[0], 1u);
  if (sample == Sample::kRightAtomics) SyncThreads();
  data[threadIdx.x] = static_cast<float>(count[0]);
}

RF_KERNEL void Diverge(Sample sample, float* data) {
  const int lane = LaneId();
  const bool low = threadIdx.x < kSampleThreads / 2;
  float value = data[threadIdx.x];
  switch (sample) {
    case Sample::kDivergentBarrier:
      if (low) {
        SyncThreads();
      } else {
        SyncThreads();
      }
      break;
    case Sample::kBarrierAfterExit:
      if (low) return;
      SyncThreads();
      break;
    case Sample::kMismatchedCollectives:
      value = lane < 16 ? ShuffleXor(value, 1) : ShuffleUp(value, 1);
      break;
    case Sample::kMaskWithoutCaller:
      value = Shuffle(value, 0, 0x0000ffffu);
      break;
    case Sample::kCollectiveAfterExit:
      if (lane == 7) return;
      value = Shuffle(value, 0);
      break;
    case Sample::kShuffleFromUnnamedLane:
      if (lane < 16) value = Shuffle(value, 20, 0x0000ffffu);
      break;
    default:
      break;
  }
  data[threadIdx.x] = value;
}

RF_KERNEL void Stray(Sample sample, float* data) {
  RF_SHARED(float, tile, kSampleThreads);
  RF_DYNAMIC_SHARED(bytes);
  const unsigned i = threadIdx.x;
  const bool last = i == kSampleThreads - 1;
  switch (sample) {
    case Sample::kReadBeyond:
      tile[i] = data[i + 1];
      break;
    case Sample::kWriteBeyond:
      data[i + 1] = 0;
      break;
    case Sample::kWriteBefore:
      data[static_cast<int64_t>(i) - 1] = 0;
      break;
    case Sample::kSharedBeyond:
      *(tile + i + (last ? 1 : 0)) = 0;
      break;
    case Sample::kDynamicBeyond:
      bytes[i * 4 + (last ? 4 : 0)] = 0;
      break;
    case Sample::kMisaligned:
      Store(data + 1, Load<float4>(data + 1));
      break;
    case Sample::kMisalignedWord:
      data[0] = static_cast<float>(*reinterpret_cast<const unsigned long long*>(data + 1));
      break;
    case Sample::kTraps:
      if (last) Trap();
      break;
    case Sample::kReadsFreshShared:
      data[i] = tile[i];
      break;
    case Sample::kReadsTable:
      data[i] = kTable[i % 4];
      break;
    default:
      break;
  }
}

struct Hidden {
  int n;
  const float* data;
};

RF_KERNEL void FollowHidden(Hidden hidden, float* data) {
  data[threadIdx.x] = hidden.data[threadIdx.x % static_cast<unsigned>(hidden.n)];
}

RF_KERNEL void LastBlock(unsigned* total) {
  RF_SHARED(unsigned, last, 1);
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  AtomicAdd(&total[0], 1u);
  SyncThreads();
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
    last[0] = AtomicAdd(&total[2], 1u) == blocks - 1 ? 1 : 0;
  }
  SyncThreads();
  if (last[0] != 0 && threadIdx.x + threadIdx.y + threadIdx.z == 0) total[1] = blocks;
}

template <typename T>
RF_KERNEL void Scale(T* data, int n, T factor, T add) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) data[i] = data[i] * factor + add;
}

RF_KERNEL void Nothing() {}

RF_KERNEL void Collectives(uint64_t* results, unsigned* votes) {
  const int lane = LaneId();
  const auto thread = static_cast<uint64_t>(threadIdx.x);
  uint64_t* out = results + thread * kCollectiveResults;
  out[0] = Shuffle(thread, 5);
  out[1] = ShuffleXor(thread, 16);
  out[2] = ShuffleUp(thread, 3);
  out[3] = static_cast<uint64_t>(Shuffle(static_cast<float>(lane), 31 - lane));
  out[4] = static_cast<uint64_t>(lane);
  out[5] = static_cast<uint64_t>(WarpId());
  out[6] = 99;
  // Lanes below 8 shuffle among themselves, while the others vote.
  const unsigned low = 0x000000ffu;
  if (lane < 8) {
    out[6] = ShuffleXor(thread, 7, low);
  } else {
    out[6] = All(lane >= 8, ~low) ? 1 : 0;
  }
  out[7] = blockDim.x;
  out[8] = gridDim.x;
  votes[threadIdx.x * 2] = (Any(lane == 31) ? 1u : 0u) + (Any(lane == 32) ? 2u : 0u);
  votes[threadIdx.x * 2 + 1] = (All(lane < 32) ? 1u : 0u) + (All(lane < 31) ? 2u : 0u);
}

}  // namespace

cudaError_t RunSample(Sample sample, float* data, cudaStream_t stream) {
  constexpr size_t kDynamic = kSampleThreads * sizeof(float);
  if (sample <= Sample::kBarrierInsideLoopLost) {
    return Launch(ReverseBlock, 1, kSampleThreads, 0, stream, sample, data);
  }
  if (sample <= Sample::kPartialWarpBarrier) {
    return Launch(ReverseWarps, 1, kSampleThreads, 0, stream, sample, data);
  }
  if (sample <= Sample::kCopyOverReaders) {
    return Launch(ReverseCopied, 1, kSampleThreads, kDynamic, stream, sample, data);
  }
  if (sample == Sample::kMatrixNoBarrier) {
    return Launch(MatrixOfOthers, 1, kSampleThreads, 0, stream, data);
  }
  if (sample <= Sample::kAtomicsNoBarrier) {
    return Launch(CountThreads, 1, kSampleThreads, 0, stream, sample, data);
  }
  if (sample <= Sample::kShuffleFromUnnamedLane) {
    return Launch(Diverge, 1, kSampleThreads, 0, stream, sample, data);
  }
  return Launch(Stray, 1, kSampleThreads, kDynamic, stream, sample, data);
}

cudaError_t RunHostPointer(const float* host, float* data) {
  return Launch(FollowHidden, 1, kSampleThreads, 0, nullptr, Hidden{4, host}, data);
}

cudaError_t RunLastBlock(unsigned* total, dim3 grid, dim3 block) {
  return Launch(LastBlock, grid, block, 0, nullptr, total);
}

cudaError_t RunScale(float* data, int n, float factor, float add, cudaStream_t stream) {
  return Launch(Scale<float>, (static_cast<unsigned>(n) + 127) / 128, 128, 0, stream, data, n,
                factor, add);
}

cudaError_t RunNothing(dim3 grid, dim3 block, size_t shared_bytes) {
  return Launch(Nothing, grid, block, shared_bytes, nullptr);
}

cudaError_t RunCollectives(uint64_t* results, unsigned* votes) {
  return Launch(Collectives, 1, 64, 0, nullptr, results, votes);
}

}  // namespace ringfill::emulation_test
