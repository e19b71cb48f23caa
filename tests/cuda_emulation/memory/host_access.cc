#include "tests/cuda_emulation/memory/host_access.h"

#include <signal.h>
#include <unistd.h>

#include <cstdint>

namespace ringfill::cuda_emulation {
namespace {

uintptr_t first_address = 0;
uintptr_t range_bytes = 0;
struct sigaction previous;

void OnFault(int, siginfo_t* info, void*) {
  if (reinterpret_cast<uintptr_t>(info->si_addr) - first_address < range_bytes) {
    constexpr char kText[] =
        "cuda emulation: device memory was touched outside queued work (or beyond an allocation)\n";
    if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) _exit(1);
  }
  // The faulting instruction runs again and meets the earlier handler.
  sigaction(SIGSEGV, &previous, nullptr);
}

}  // namespace

void ExplainHostAccess(const void* range, size_t bytes) {
  first_address = reinterpret_cast<uintptr_t>(range);
  range_bytes = bytes;
  struct sigaction action {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous);
}

}  // namespace ringfill::cuda_emulation
