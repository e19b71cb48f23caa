#include "tests/cuda_emulation/memory/program_image.h"

#include <link.h>

#include <cstdint>

namespace ringfill::cuda_emulation {
namespace {

struct Search {
  uintptr_t address;
  bool found;
};

int Visit(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0 && search->address >= start &&
        search->address < start + segment.p_memsz) {
      search->found = true;
    }
  }
  return search->found ? 1 : 0;
}

}  // namespace

bool IsReadOnlyData(const void* p) {
  // A kernel reads the same table again and again.
  static thread_local uintptr_t known = 0;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (known != 0 && address / 4096 == known) return true;
  Search search{address, false};
  dl_iterate_phdr(&Visit, &search);
  if (search.found) known = address / 4096;
  return search.found;
}

}  // namespace ringfill::cuda_emulation
