// The address sanitizer's calls, which do nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define RF_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RF_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef RF_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ringfill::cuda_emulation {

#ifdef RF_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
inline void Poison(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void Unpoison(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
inline void StartSwitch(void** fake_stack, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
inline void FinishSwitch(void* fake_stack, const void** stack, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void Poison(const void*, size_t) {}
inline void Unpoison(const void*, size_t) {}
inline void StartSwitch(void**, const void*, size_t) {}
inline void FinishSwitch(void*, const void**, size_t*) {}
#endif

}  // namespace ringfill::cuda_emulation
