// What the compiler calls at every load and store of a file compiled with -fsanitize=thread. Kernel
// files are compiled so and linked with these instead of the thread sanitizer's runtime: they check
// that an address is one that a kernel may use, and aligned, and that no two threads race for
// shared memory.
//
// This file itself, and whatever else is no kernel, is compiled without.
#include "tests/cuda_emulation/execution/block.h"

namespace {

using ringfill::cuda_emulation::AccessKind;
using ringfill::cuda_emulation::BlockExecutor;
using ringfill::cuda_emulation::InLibrary;
using ringfill::cuda_emulation::running;

enum class Alignment { kOwn, kAny };

inline void Check(AccessKind kind, const void* p, size_t bytes,
                  Alignment alignment = Alignment::kAny) {
  // The host's part of a kernel file, launch functions and templates shared with other files.
  if (!running.checking) return;
  BlockExecutor& executor = *running.executor;
  if (executor.thread().fiber.Contains(p)) return;
  const InLibrary in_library;
  if (alignment == Alignment::kOwn) executor.CheckAligned(p, bytes, {});
  executor.Check(kind, p, bytes, executor.thread(), {});
}

}  // namespace

extern "C" {

// The compiler says of what may be unaligned that it is; it reads that in pieces.
#define RF_HOOKS(bytes)                                                                       \
  void __tsan_read##bytes(void* p) { Check(AccessKind::kRead, p, bytes, Alignment::kOwn); }   \
  void __tsan_write##bytes(void* p) { Check(AccessKind::kWrite, p, bytes, Alignment::kOwn); } \
  void __tsan_unaligned_read##bytes(void* p) { Check(AccessKind::kRead, p, bytes); }          \
  void __tsan_unaligned_write##bytes(void* p) { Check(AccessKind::kWrite, p, bytes); }

RF_HOOKS(1)
RF_HOOKS(2)
RF_HOOKS(4)
RF_HOOKS(8)
RF_HOOKS(16)

void __tsan_read_range(void* p, size_t bytes) { Check(AccessKind::kRead, p, bytes); }
void __tsan_write_range(void* p, size_t bytes) { Check(AccessKind::kWrite, p, bytes); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

}  // extern "C"
