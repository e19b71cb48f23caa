// The half of device_code.h for nvcc, included by it alone. sm_80 and later.
#pragma once

#include <cuda_runtime.h>

#define RF_KERNEL __global__
#define RF_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define RF_DEVICE __device__ __forceinline__
#define RF_HOST_DEVICE __host__ __device__ __forceinline__
#define RF_CONSTANT static __constant__ const
#define RF_UNROLL _Pragma("unroll")
#define RF_SHARED(type, name, extent) __shared__ __align__(16) type name[extent]
#define RF_DYNAMIC_SHARED(name)                                       \
  extern __shared__ __align__(128) unsigned char rf_dynamic_shared[]; \
  unsigned char* const name = rf_dynamic_shared

namespace ringfill::gpu {

RF_DEVICE int LaneId() { return static_cast<int>(threadIdx.x % 32); }
RF_DEVICE int WarpId() { return static_cast<int>(threadIdx.x / 32); }

RF_DEVICE void SyncThreads() { __syncthreads(); }
RF_DEVICE void SyncWarp(unsigned mask = kAllLanes) { __syncwarp(mask); }
RF_DEVICE void Trap() { __trap(); }

template <typename T>
RF_DEVICE T Shuffle(T value, int lane, unsigned mask = kAllLanes) {
  return __shfl_sync(mask, value, lane);
}
template <typename T>
RF_DEVICE T ShuffleXor(T value, int lanes, unsigned mask = kAllLanes) {
  return __shfl_xor_sync(mask, value, lanes);
}
template <typename T>
RF_DEVICE T ShuffleUp(T value, int delta, unsigned mask = kAllLanes) {
  return __shfl_up_sync(mask, value, static_cast<unsigned>(delta));
}
RF_DEVICE bool Any(bool predicate, unsigned mask = kAllLanes) {
  return __any_sync(mask, predicate) != 0;
}
RF_DEVICE bool All(bool predicate, unsigned mask = kAllLanes) {
  return __all_sync(mask, predicate) != 0;
}

template <typename T>
RF_DEVICE T AtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
RF_DEVICE unsigned AtomicOr(unsigned* address, unsigned value) { return atomicOr(address, value); }
RF_DEVICE unsigned AtomicCas(unsigned* address, unsigned expected, unsigned value) {
  return atomicCAS(address, expected, value);
}

template <typename V>
RF_DEVICE V Load(const void* p) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  return *static_cast<const V*>(p);
}
template <typename V>
RF_DEVICE void Store(void* p, V v) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  *static_cast<V*>(p) = v;
}
template <typename V>
RF_DEVICE V LoadStreaming(const void* p) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  union {
    V value;
    unsigned word[sizeof(V) / 4];
  } u;
  if constexpr (sizeof(V) == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(u.word[0]), "=r"(u.word[1]), "=r"(u.word[2]), "=r"(u.word[3])
                 : "l"(p));
  } else if constexpr (sizeof(V) == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(u.word[0]), "=r"(u.word[1])
                 : "l"(p));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(u.word[0]) : "l"(p));
  }
  return u.value;
}

RF_DEVICE unsigned SharedAddress(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
RF_DEVICE void CpAsync16(void* shared, const void* device, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(device), "r"(bytes)
               : "memory");
}
RF_DEVICE void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
RF_DEVICE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

RF_DEVICE void LdMatrixX4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
RF_DEVICE void LdMatrixX4Trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// T without including base's or the toolkit's own 16-bit arithmetic.
template <typename T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<Bf16> = true;

template <typename T>
RF_DEVICE void MmaM16N8K16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (kIsBf16<T>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}
template <typename T, int n>
RF_DEVICE void MmaM16N8K16(float (&d)[n][4], const unsigned (&a)[4], const unsigned (&b)[n][2]) {
  RF_UNROLL
  for (int j = 0; j < n; ++j) MmaM16N8K16<T>(d[j], a, b[j]);
}
template <typename T, int m, int n>
RF_DEVICE void MmaM16N8K16(float (&d)[m][n][4], const unsigned (&a)[m][4],
                           const unsigned (&b)[n][2]) {
  RF_UNROLL
  for (int i = 0; i < m; ++i) {
    RF_UNROLL
    for (int j = 0; j < n; ++j) MmaM16N8K16<T>(d[i][j], a[i], b[j]);
  }
}

RF_DEVICE float Widen(Bf16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }
RF_DEVICE float Widen(F16 v) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(v.bits));
  return result;
}
template <typename T>
RF_DEVICE T Narrow(float v) {
  T result;
  if constexpr (kIsBf16<T>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(v));
  } else {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(v));
  }
  return result;
}
template <typename T>
RF_DEVICE unsigned Pack(float low, float high) {
  unsigned result;
  if constexpr (kIsBf16<T>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

RF_DEVICE float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
RF_DEVICE bool IsFinite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace ringfill::gpu
