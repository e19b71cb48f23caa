// What kernels are written with; the one header that a .cu file includes besides launch.h and its
// own. It has two halves with the same names: under nvcc thin wrappers of PTX (device_ptx.h), in
// any other compiler the emulation of tests/cuda_emulation, whose include folder its targets add.
//
//   RF_KERNEL RF_LAUNCH_BOUNDS(128) void AddKernel(const float* a, float* b, int64_t n) {
//     RF_SHARED(float, tile, 128);           // float tile[128], aligned to 16 bytes
//     RF_DYNAMIC_SHARED(bytes);              // unsigned char* const bytes, aligned to 128 bytes
//     tile[threadIdx.x] = a[threadIdx.x];
//     SyncThreads();
//     ...
//
// Rules that the emulation enforces, each with a message that names kernel, block, thread and line:
//   - Shared memory is full of NaN at the start of a block. A read or write of another thread's
//     data needs a barrier between; SyncThreads for the block, SyncWarp for a warp. Shuffles and
//     votes order no memory.
//   - All lanes that a mask names call the same collective on the same source line; so do all
//     threads of a block for SyncThreads, exited ones included. A mask names its caller.
//   - What CpAsync16 fills is not touched, by any thread, before the issuer's CpAsyncWait, nor by
//     others before a barrier after that.
//   - Pointers are into device memory, inside one allocation, aligned to the access.
//   - No block waits for another.
// Locals of kernels have trivial destructors. Tables are RF_CONSTANT. Lane and warp numbers assume
// that blockDim.y and z are 1.
//
// A warp collective's `mask` has a bit per lane. Fragments of matrices are those of the PTX manual
// (mma.m16n8k16, ldmatrix), two 16-bit elements to a register, the lower index in the lower half:
// with g = lane / 4 and t = lane % 4
//   a[0] (row g,   columns 2t, 2t+1)    a[1] (row g+8, the same columns)
//   a[2] (row g,   columns 2t+8, +9)    a[3] (row g+8, those)
//   b[0] (rows 2t, 2t+1; column g)      b[1] (rows 2t+8, +9; column g)
//   d[0], d[1] (row g, columns 2t, 2t+1)   d[2], d[3] (row g+8, those)
// LdMatrix: lanes 8j..8j+7 give the addresses of the rows of matrix j, 16 bytes each; register j of
// a lane gets row g, elements 2t and 2t+1 (Trans: rows 2t and 2t+1 of column g). b[] of a matrix
// stored as [n][k] is a plain load, of one stored as [k][n] a transposed one.
//
// What is offered, in namespace ringfill::gpu:
//   LaneId(), WarpId()
//   SyncThreads(), SyncWarp(mask = all), Trap()
//   Shuffle(value, lane), ShuffleXor(value, lanes), ShuffleUp(value, delta), each with an optional
//     mask; T of 4 or 8 bytes. A lane outside 0..31 is the caller itself.
//   Any(predicate), All(predicate), each with an optional mask
//   AtomicAdd(float, int, unsigned, unsigned long long), AtomicOr(unsigned), AtomicCas(unsigned);
//     shared or device memory
//   Load<V>(p), LoadStreaming<V>(p) (device memory, read once: leaves the L1 alone), Store(p, v):
//     V of 4, 8 or 16 bytes (uint4, float4, uint2, float2, unsigned, ...), aligned to its size
//   CpAsync16(shared, device, bytes = 16): copies `bytes` (0 to 16), zero-fills the rest
//   CpAsyncCommit(), CpAsyncWait<n>(): all but the last n groups have landed
//   LdMatrixX4(r, row), LdMatrixX4Trans(r, row)
//   MmaM16N8K16<T>(d, a, b): d += a * b, T is Bf16 or F16, float32 accumulation. Forms:
//     d[4], a[4], b[2]; d[n][4], a[4], b[n][2]; d[m][n][4], a[m][4], b[n][2]. The device does the
//     same in each; the emulation is faster with more products to a call.
//   Widen(Bf16 or F16), Narrow<T>(float): to and from float32; round to nearest even, any NaN
//   becomes 0x7fff. Pack<T>(low, high): two of them in a register
//   Exp2 (approximate, subnormals may flush to zero), IsFinite, kInfinity, kAllLanes
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"

namespace ringfill::gpu {

// IEEE half precision as raw bits, beside base's Bf16.
struct F16 {
  uint16_t bits = 0;
};

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarpLanes = 32;
inline constexpr float kInfinity = __builtin_huge_valf();

}  // namespace ringfill::gpu

#ifdef __CUDACC__
#include "engine/compute/cuda/device_ptx.h"
#else
#include <emulated_device_code.h>
#endif
