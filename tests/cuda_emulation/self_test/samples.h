// Small kernels, right and wrong, for the emulation's own tests.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ringfill::emulation_test {

inline constexpr int kSampleThreads = 128;

// Each runs one block of kSampleThreads. `data` is device memory of kSampleThreads floats.
enum class Sample {
  kRight,                  // reverses `data` through shared memory
  kNoBarrier,              // the same without SyncThreads
  kBarrierInsideLoopLost,  // a second round writes what others still read
  kRightWithinWarp,        // reverses each warp's part, with SyncWarp
  kNoWarpBarrier,          // the same without
  kShuffleAsBarrier,       // the same with a Shuffle in its place
  kPartialWarpBarrier,     // the same with a SyncWarp of half the warp
  kRightCopy,              // reverses through CpAsync16
  kCopyNotWaited,          // the same without CpAsyncWait
  kCopyWaitTooWeak,        // waits for all groups but the one it needs
  kCopyNotCommitted,       // waits, but committed nothing
  kCopyNoBarrier,          // reads what another thread copied, right after its own wait
  kCopyOverReaders,        // copies into what others may still read
  kMatrixNoBarrier,        // LdMatrix of rows that other lanes wrote
  kRightAtomics,           // counts in shared memory
  kAtomicsNoBarrier,       // reads the count too early
  kDivergentBarrier,       // half the threads at another SyncThreads
  kBarrierAfterExit,       // half the threads have returned
  kMismatchedCollectives,  // lanes in different shuffles
  kMaskWithoutCaller,
  kCollectiveAfterExit,
  kShuffleFromUnnamedLane,
  kReadBeyond,  // one past the end of `data`
  kWriteBeyond,
  kWriteBefore,
  kSharedBeyond,    // one past the end of a shared array
  kDynamicBeyond,   // one past the dynamic part
  kMisaligned,      // sixteen bytes at once
  kMisalignedWord,  // eight, read as any variable is
  kTraps,
  kReadsFreshShared,  // writes what shared memory held at the start
  kReadsTable,        // a constant table
};

cudaError_t RunSample(Sample sample, float* data, cudaStream_t stream = nullptr);
// Follows a pointer to host memory hidden in a struct.
cudaError_t RunHostPointer(const float* host, float* data);
// Every thread of every block adds 1 to total[0]; the last block writes `blocks` to total[1].
cudaError_t RunLastBlock(unsigned* total, dim3 grid, dim3 block);
// data[i] = data[i] * factor + add, over n elements.
cudaError_t RunScale(float* data, int n, float factor, float add, cudaStream_t stream);
// Nothing; for launch limits.
cudaError_t RunNothing(dim3 grid, dim3 block, size_t shared_bytes);
// Writes what Shuffle (all kinds), votes and indices gave each thread: see collectives_test.cc.
inline constexpr int kCollectiveResults = 12;
cudaError_t RunCollectives(uint64_t* results, unsigned* votes);

}  // namespace ringfill::emulation_test
