#include "tests/cuda_emulation/memory/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tests/cuda_emulation/execution/address_sanitizer.h"
#include "tests/cuda_emulation/memory/host_access.h"

namespace ringfill::cuda_emulation {
namespace {

// Allocations are private copies of this file, so that memory is filled and yet takes no pages
// until it is written.
constexpr size_t kPoisonFileBytes = size_t{16} << 20;

// Without protection keys larger allocations stay accessible to all: changing that of every page
// around each piece of work would take most of the time.
constexpr size_t kMostProtected = size_t{1} << 20;

int MakePoisonFile() {
  const int file = memfd_create("ringfill-device-poison", MFD_CLOEXEC);
  RF_CHECK(file >= 0 && ftruncate(file, kPoisonFileBytes) == 0);
  void* bytes = mmap(nullptr, kPoisonFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  RF_CHECK(bytes != MAP_FAILED);
  std::memset(bytes, 0xff, kPoisonFileBytes);
  munmap(bytes, kPoisonFileBytes);
  return file;
}

void* Reserve(size_t bytes, int protection) {
  void* memory =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RF_CHECK(memory != MAP_FAILED);
  return memory;
}

}  // namespace

DeviceMemory& DeviceMemory::Get() {
  static auto* memory = new DeviceMemory;
  return *memory;
}

DeviceMemory::DeviceMemory()
    : range_(static_cast<std::byte*>(Reserve(kMaxDevices * kDeviceSpan, PROT_NONE))),
      table_(static_cast<std::atomic<Allocation*>*>(
          Reserve(kMaxDevices * kDeviceSpan / kGranule * sizeof(*table_), PROT_READ | PROT_WRITE))),
      poison_file_(MakePoisonFile()),
      keys_(kMaxDevices) {
  ExplainHostAccess(range_, kMaxDevices * kDeviceSpan);
}

void DeviceMemory::Reset(size_t bytes_per_device) {
  MutexLock lock(&mutex_);
  total_ = bytes_per_device;
  for (Device& device : devices_) {
    RF_CHECK(device.open == 0);
    for (const Allocation* allocation : device.live) Unmap(*allocation);
    for (const auto& allocation : device.allocations) Enter(allocation.get(), nullptr);
    device.live.clear();
    // Addresses stay used up, so that a pointer kept from before is still recognised.
    device.allocations.clear();
    device.pool.clear();
    device.used = 0;
    device.most = total_;
  }
  for (size_t i = 0; i < kMaxDevices; ++i) pool_access_[i] = 1u << i;
}

void DeviceMemory::Enter(const Allocation* allocation, Allocation* value) {
  const auto first = static_cast<size_t>(allocation->base - range_) / kGranule;
  const size_t last = first + (allocation->bytes + kGranule - 1) / kGranule;
  for (size_t i = first; i < last; ++i) table_[i].store(value, std::memory_order_release);
}

bool DeviceMemory::TakeFromPool(Device& device, size_t bytes, const void* stream) {
  Kept* best = nullptr;
  for (Kept& kept : device.pool) {
    const bool serves = kept.bytes >= bytes && (kept.freed || kept.stream == stream);
    if (serves && (best == nullptr || kept.bytes < best->bytes)) best = &kept;
  }
  if (best == nullptr) return false;
  best->bytes -= bytes;
  return true;
}

void DeviceMemory::QueueFree(const void* p, const void* stream) {
  MutexLock lock(&mutex_);
  const int index = DeviceOf(p);
  const Allocation* a = index < 0 ? nullptr : Find(p);
  if (a == nullptr || a->base != p || !a->pooled || a->freed) return;
  At(index).pool.push_back({a->bytes, p, stream});
}

void DeviceMemory::Trim(int index) {
  MutexLock lock(&mutex_);
  TrimLocked(At(index));
}

void DeviceMemory::TrimLocked(Device& device) {
  std::erase_if(device.pool, [&device](const Kept& kept) {
    if (kept.freed) device.used -= kept.bytes;
    return kept.freed;
  });
}

void* DeviceMemory::Allocate(int index, size_t bytes, bool pooled, const void* stream) {
  MutexLock lock(&mutex_);
  Device& device = At(index);
  const size_t span = (bytes + kGranule - 1) / kGranule * kGranule + kGranule;
  const size_t offset = FindSpace(device, span);
  if (offset == kDeviceSpan) return nullptr;
  if (!pooled || !TakeFromPool(device, bytes, stream)) {
    if (device.used + bytes > device.most) return nullptr;
    device.used += bytes;
  }
  auto allocation = std::make_unique<Allocation>();
  allocation->base = range_ + static_cast<size_t>(index) * kDeviceSpan + offset;
  allocation->bytes = bytes;
  allocation->pooled = pooled;
  device.next = offset + span;
  Map(index, *allocation, device.open > 0);
  Enter(allocation.get(), allocation.get());
  device.live.push_back(allocation.get());
  device.allocations.push_back(std::move(allocation));
  return device.allocations.back()->base;
}

size_t DeviceMemory::FindSpace(Device& device, size_t span) {
  device.used_up = device.used_up || device.next + span > kDeviceSpan;
  if (!device.used_up) return device.next;
  std::vector<const Allocation*> live(device.live.begin(), device.live.end());
  std::sort(live.begin(), live.end(),
            [](const Allocation* a, const Allocation* b) { return a->base < b->base; });
  size_t offset = kGranule;
  for (const Allocation* a : live) {
    const size_t start = static_cast<size_t>(a->base - range_) % kDeviceSpan;
    if (offset + span <= start) return offset;
    offset = start + (a->bytes + kGranule - 1) / kGranule * kGranule + kGranule;
  }
  return offset + span <= kDeviceSpan ? offset : kDeviceSpan;
}

void DeviceMemory::Map(int device, const Allocation& allocation, bool open) {
  const bool accessible = open || keys_.available() || allocation.bytes > kMostProtected;
  for (size_t done = 0; done < allocation.mapped_bytes(); done += kPoisonFileBytes) {
    const size_t part = std::min(kPoisonFileBytes, allocation.mapped_bytes() - done);
    void* at = mmap(allocation.base + done, part, accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
                    MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file_, 0);
    RF_CHECK(at == allocation.base + done);
  }
  if (keys_.available()) {
    RF_CHECK(pkey_mprotect(allocation.base, allocation.mapped_bytes(), PROT_READ | PROT_WRITE,
                           keys_.key(device)) == 0);
  }
  Poison(allocation.base + allocation.bytes, allocation.mapped_bytes() - allocation.bytes);
}

void DeviceMemory::Unmap(const Allocation& allocation) {
  // Another allocation may come to lie here.
  Unpoison(allocation.base + allocation.bytes, allocation.mapped_bytes() - allocation.bytes);
  void* at = mmap(allocation.base, allocation.mapped_bytes(), PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  RF_CHECK(at == allocation.base);
}

void DeviceMemory::SetPoolAccess(int device, int peer, bool access) {
  std::atomic<unsigned>& mask = pool_access_[static_cast<size_t>(device)];
  if (access) {
    mask |= 1u << peer;
  } else {
    mask &= ~(1u << peer);
  }
}

bool DeviceMemory::Free(void* p) {
  MutexLock lock(&mutex_);
  const int index = DeviceOf(p);
  if (index < 0) return false;
  Device& device = At(index);
  const auto found = std::find_if(device.live.begin(), device.live.end(),
                                  [p](const Allocation* a) { return a->base == p; });
  if (found == device.live.end()) return false;
  (*found)->freed = true;
  const auto kept = std::find_if(device.pool.begin(), device.pool.end(),
                                 [p](const Kept& k) { return k.allocation == p && !k.freed; });
  if (kept != device.pool.end()) {
    kept->freed = true;
  } else {
    device.used -= (*found)->bytes;
  }
  Unmap(**found);
  device.live.erase(found);
  return true;
}

void DeviceMemory::Limit(int device, size_t free_bytes) {
  MutexLock lock(&mutex_);
  TrimLocked(At(device));
  At(device).most = At(device).used + free_bytes;
}

size_t DeviceMemory::total() const {
  MutexLock lock(&mutex_);
  return total_;
}

size_t DeviceMemory::left(int device) const {
  MutexLock lock(&mutex_);
  const Device& of = devices_[static_cast<size_t>(device)];
  return of.most - std::min(of.most, of.used);
}

void DeviceMemory::Open(int device) {
  if (keys_.available()) keys_.Open(device);
  MutexLock lock(&mutex_);
  if (At(device).open++ == 0) Protect(At(device), true);
}

void DeviceMemory::Close(int device) {
  if (keys_.available()) keys_.Close(device);
  MutexLock lock(&mutex_);
  if (--At(device).open == 0) Protect(At(device), false);
}

void DeviceMemory::Protect(Device& device, bool open) {
  if (keys_.available()) return;
  for (const Allocation* allocation : device.live) {
    if (allocation->bytes > kMostProtected) continue;
    RF_CHECK(mprotect(allocation->base, allocation->mapped_bytes(),
                      open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  }
}

std::string DeviceMemory::Problem(int device, const void* p, size_t bytes) const {
  const int owner = DeviceOf(p);
  if (owner < 0) return "of host memory";
  const Allocation* a = Find(p);
  if (a == nullptr) return "of device memory that was never allocated";
  const std::string name = "an allocation of " + std::to_string(a->bytes) + " bytes";
  const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(p) - a->base);
  if (a->freed) return "at offset " + std::to_string(offset) + " of " + name + " that was freed";
  if (offset + bytes > a->bytes) {
    return "at offset " + std::to_string(offset) + ", past the end of " + name;
  }
  if (owner != device) return "of " + name + " on device " + std::to_string(owner);
  return "of " + name;
}

}  // namespace ringfill::cuda_emulation
