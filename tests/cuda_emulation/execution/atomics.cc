// Atomic operations. Blocks of different streams may run on different OS threads, so these are real
// ones.
#include <bit>
#include <type_traits>

#include "engine/compute/cuda/device_code.h"
#include "tests/cuda_emulation/execution/block.h"

namespace ringfill::gpu {
namespace {

template <typename T>
void Check(T* address) {
  cuda_emulation::BlockExecutor& executor = *cuda_emulation::running.executor;
  executor.CheckAligned(address, sizeof(T), {});
  executor.Check(cuda_emulation::AccessKind::kAtomic, address, sizeof(T), executor.thread(), {});
}

// Replaces the value by change(value); returns the old one.
template <typename T, typename Change>
T Update(T* address, Change change) {
  const cuda_emulation::InLibrary in_library;
  Check(address);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(bits, &old,
                                      std::bit_cast<Bits>(change(std::bit_cast<T>(old))), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return std::bit_cast<T>(old);
}

}  // namespace

template <typename T>
T AtomicAdd(T* address, T value) {
  return Update(address, [value](T old) { return static_cast<T>(old + value); });
}
template float AtomicAdd(float*, float);
template int AtomicAdd(int*, int);
template unsigned AtomicAdd(unsigned*, unsigned);
template unsigned long long AtomicAdd(unsigned long long*, unsigned long long);

unsigned AtomicOr(unsigned* address, unsigned value) {
  return Update(address, [value](unsigned old) { return old | value; });
}
unsigned AtomicCas(unsigned* address, unsigned expected, unsigned value) {
  return Update(address, [expected, value](unsigned old) { return old == expected ? value : old; });
}

}  // namespace ringfill::gpu
