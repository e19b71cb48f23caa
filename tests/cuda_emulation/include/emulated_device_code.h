// The half of device_code.h for the emulation, included by it alone. The names and their meaning
// are told there; what has to wait for other threads lies in the emulation's library.
//
// Kernel files are compiled with instrumented accesses (race_hooks.cc); what must not report plain
// accesses reports its own through the library.
#pragma once

#include <cuda_runtime.h>
#include <emulated_device_calls.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "engine/compute/cuda/device_code.h"

#define RF_KERNEL
#define RF_LAUNCH_BOUNDS(...)
#define RF_DEVICE inline
#define RF_HOST_DEVICE inline
#define RF_CONSTANT static const
#define RF_UNROLL
#define RF_SHARED(type, name, extent)                                                         \
  static const ::ringfill::cuda_emulation::SharedSite name##_site{#name, __FILE__, __LINE__}; \
  type(&name)[extent] = *static_cast<type(*)[extent]>(                                        \
      ::ringfill::cuda_emulation::StaticShared(name##_site, sizeof(type) * (extent)))
#define RF_DYNAMIC_SHARED(name) \
  unsigned char* const name = ::ringfill::cuda_emulation::DynamicShared()

#define threadIdx (::ringfill::cuda_emulation::ThreadIndex())
#define blockIdx (::ringfill::cuda_emulation::BlockIndex())
#define blockDim (::ringfill::cuda_emulation::BlockDim())
#define gridDim (::ringfill::cuda_emulation::GridDim())

namespace ringfill::gpu {

#define RF_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline int LaneId() { return static_cast<int>(threadIdx.x % 32); }
inline int WarpId() { return static_cast<int>(threadIdx.x / 32); }

inline void SyncThreads(RF_SITE) { cuda_emulation::SyncThreads({file, line}); }
inline void SyncWarp(unsigned mask = kAllLanes, RF_SITE) {
  cuda_emulation::SyncWarp(mask, {file, line});
}
inline void Trap(RF_SITE) { cuda_emulation::Trap({file, line}); }

template <typename T>
T ShuffleAs(cuda_emulation::ShuffleKind kind, unsigned mask, T value, int argument,
            cuda_emulation::Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = cuda_emulation::Shuffle(kind, mask, bits, argument, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T Shuffle(T value, int lane, unsigned mask = kAllLanes, RF_SITE) {
  return ShuffleAs(cuda_emulation::ShuffleKind::kLane, mask, value, lane, {file, line});
}
template <typename T>
T ShuffleXor(T value, int lanes, unsigned mask = kAllLanes, RF_SITE) {
  return ShuffleAs(cuda_emulation::ShuffleKind::kXor, mask, value, lanes, {file, line});
}
template <typename T>
T ShuffleUp(T value, int delta, unsigned mask = kAllLanes, RF_SITE) {
  return ShuffleAs(cuda_emulation::ShuffleKind::kUp, mask, value, delta, {file, line});
}
inline bool Any(bool predicate, unsigned mask = kAllLanes, RF_SITE) {
  return cuda_emulation::Vote(cuda_emulation::VoteKind::kAny, mask, predicate, {file, line});
}
inline bool All(bool predicate, unsigned mask = kAllLanes, RF_SITE) {
  return cuda_emulation::Vote(cuda_emulation::VoteKind::kAll, mask, predicate, {file, line});
}

// Defined in the library, which is not instrumented, for the types that device_code.h lists.
template <typename T>
T AtomicAdd(T* address, T value);
unsigned AtomicOr(unsigned* address, unsigned value);
unsigned AtomicCas(unsigned* address, unsigned expected, unsigned value);

template <typename V>
V Load(const void* p) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  V v;
  cuda_emulation::CheckedRead(p, sizeof(V), &v);
  return v;
}
template <typename V>
V LoadStreaming(const void* p) {
  return Load<V>(p);
}
template <typename V>
void Store(void* p, V v) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  cuda_emulation::CheckedWrite(p, sizeof(V), &v);
}

inline void CpAsync16(void* shared, const void* device, int bytes = 16, RF_SITE) {
  cuda_emulation::CpAsync16(shared, device, bytes, {file, line});
}
inline void CpAsyncCommit() { cuda_emulation::CpAsyncCommit(); }
template <int n>
void CpAsyncWait() {
  cuda_emulation::CpAsyncWait(n);
}

inline void LdMatrixX4(unsigned (&r)[4], const void* row, RF_SITE) {
  cuda_emulation::LdMatrix(r, false, row, {file, line});
}
inline void LdMatrixX4Trans(unsigned (&r)[4], const void* row, RF_SITE) {
  cuda_emulation::LdMatrix(r, true, row, {file, line});
}

template <typename T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<Bf16> = true;

template <typename T>
void MmaM16N8K16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], RF_SITE) {
  cuda_emulation::Mma(kIsBf16<T>, 1, 1, d, a, b, {file, line});
}
template <typename T, int n>
void MmaM16N8K16(float (&d)[n][4], const unsigned (&a)[4], const unsigned (&b)[n][2], RF_SITE) {
  cuda_emulation::Mma(kIsBf16<T>, 1, n, d[0], a, b[0], {file, line});
}
template <typename T, int m, int n>
void MmaM16N8K16(float (&d)[m][n][4], const unsigned (&a)[m][4], const unsigned (&b)[n][2],
                 RF_SITE) {
  cuda_emulation::Mma(kIsBf16<T>, m, n, d[0][0], a[0], b[0], {file, line});
}

inline float Widen(Bf16 v) { return ringfill::ToFloat(v); }
inline float Widen(F16 v) { return HalfToFloat(v.bits); }
template <typename T>
T Narrow(float v) {
  if (v != v) return T{0x7fff};
  if constexpr (kIsBf16<T>) {
    return ToBf16(v);
  } else {
    return F16{cuda_emulation::FloatToHalf(v)};
  }
}
template <typename T>
unsigned Pack(float low, float high) {
  return Narrow<T>(low).bits | static_cast<unsigned>(Narrow<T>(high).bits) << 16;
}

inline float Exp2(float x) { return std::exp2(x); }
inline bool IsFinite(float x) { return (std::bit_cast<unsigned>(x) & 0x7f800000u) != 0x7f800000u; }

#undef RF_SITE

}  // namespace ringfill::gpu
