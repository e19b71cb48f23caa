// Internal to products/: kernels are written once in Highway and compiled for AVX2 and AVX-512;
// a CpuIsa argument picks one. Include before any Highway header.
#pragma once

#include "engine/compute/cpu_isa.h"

// Sets that no CpuIsa names.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

// A pointer to `function` as compiled for `isa` (in the namespace that this is expanded in), or
// `&plain` on CpuIsa::kBaseline and on machines that Highway compiles neither set for.
// REQUIRES: HWY_ONCE, kernels guarded by HWY_CAP_GE256.
#if defined(__x86_64__)
#define RF_KERNEL(isa, function, plain)                     \
  ((isa) >= ::ringfill::CpuIsa::kAvx512 ? &N_AVX3::function \
   : (isa) == ::ringfill::CpuIsa::kAvx2 ? &N_AVX2::function \
                                        : &plain)
#else
#define RF_KERNEL(isa, function, plain) ((void)(isa), &plain)
#endif
