#include "tests/cuda_emulation/memory/host_memory.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>

#include "base/mutex.h"

namespace ringfill::cuda_emulation {
namespace {

constexpr std::align_val_t kPageAlignment{4096};

struct Free {
  void operator()(std::byte* p) const { ::operator delete(p, kPageAlignment); }
};
struct Range {
  size_t bytes;
  std::unique_ptr<std::byte, Free> owned;  // null: registered
};
struct Pinned {
  Mutex mutex;
  std::map<const std::byte*, Range> ranges ABSL_GUARDED_BY(mutex);
};
Pinned& ThePinned() {
  static auto* pinned = new Pinned;
  return *pinned;
}

bool Remove(void* p, bool owned) {
  Pinned& pinned = ThePinned();
  MutexLock lock(&pinned.mutex);
  const auto found = pinned.ranges.find(static_cast<std::byte*>(p));
  if (found == pinned.ranges.end() || (found->second.owned != nullptr) != owned) return false;
  pinned.ranges.erase(found);
  return true;
}

}  // namespace

void* AllocatePinned(size_t bytes) {
  auto* p = static_cast<std::byte*>(::operator new(bytes, kPageAlignment));
  std::memset(p, 0xff, bytes);
  Pinned& pinned = ThePinned();
  MutexLock lock(&pinned.mutex);
  pinned.ranges[p] = {bytes, std::unique_ptr<std::byte, Free>(p)};
  return p;
}

bool FreePinned(void* p) { return Remove(p, true); }

bool Register(void* p, size_t bytes) {
  const auto* start = static_cast<const std::byte*>(p);
  Pinned& pinned = ThePinned();
  MutexLock lock(&pinned.mutex);
  for (const auto& [other, range] : pinned.ranges) {
    if (start < other + range.bytes && other < start + bytes) return false;
  }
  pinned.ranges[start] = {bytes, nullptr};
  return true;
}

bool Unregister(void* p) { return Remove(p, false); }

}  // namespace ringfill::cuda_emulation
