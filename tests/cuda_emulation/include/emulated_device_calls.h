// What kernel code calls in the emulation's library, on the fiber of its thread. Kernels use the
// names of device_code.h instead.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ringfill::cuda_emulation {

// The source line of a collective.
struct Site {
  const char* file;
  int line;
};
struct SharedSite {
  const char* name;
  const char* file;
  int line;
};

// The same for the whole life of a thread of a block.
[[gnu::const]] const uint3& ThreadIndex();
[[gnu::const]] const uint3& BlockIndex();
[[gnu::const]] const dim3& BlockDim();
[[gnu::const]] const dim3& GridDim();

void* StaticShared(const SharedSite& site, size_t bytes);
unsigned char* DynamicShared();

enum class ShuffleKind { kLane, kXor, kUp };
enum class VoteKind { kAny, kAll };

void SyncThreads(Site site);
void SyncWarp(unsigned mask, Site site);
[[noreturn]] void Trap(Site site);
uint64_t Shuffle(ShuffleKind kind, unsigned mask, uint64_t bits, int argument, Site site);
bool Vote(VoteKind kind, unsigned mask, bool predicate, Site site);

// Report an access of the running thread and check its alignment to `bytes`.
void CheckedRead(const void* from, size_t bytes, void* to);
void CheckedWrite(void* to, size_t bytes, const void* from);
// Checks an atomic access: no race with other atomics.
void CheckAtomic(const void* p, size_t bytes);

void CpAsync16(void* shared, const void* device, int bytes, Site site);
void CpAsyncCommit();
void CpAsyncWait(int groups);

// registers: 4 of them.
void LdMatrix(unsigned* registers, bool transposed, const void* row, Site site);
// d [m][n][4], a [m][4], b [n][2].
void Mma(bool is_bf16, int m, int n, float* d, const unsigned* a, const unsigned* b, Site site);

uint16_t FloatToHalf(float v);

}  // namespace ringfill::cuda_emulation
