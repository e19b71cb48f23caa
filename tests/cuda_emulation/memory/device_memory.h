// The memories of the emulated devices. Each device has a range of addresses of its own, of which
// only live allocations are mapped. New memory is full of 0xff bytes (NaN), freed memory is
// unmapped and its addresses are given out again only when a device has no others left. Host code
// that touches device memory gets a segmentation fault: it is accessible only while a device is
// open, that is to the thread that runs queued work, and on CPUs without protection keys to all
// while some thread does.
//
// Any thread may call. Finding an allocation takes no lock: kernels do it at every access.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/cuda_emulation/memory/protection_keys.h"

namespace ringfill::cuda_emulation {

inline constexpr int kMaxDevices = 8;

class DeviceMemory {
 public:
  struct Allocation {
    std::byte* base;
    size_t bytes;
    bool pooled = false;  // stream-ordered memory
    std::atomic<bool> freed{false};
    size_t mapped_bytes() const { return (bytes + 4095) / 4096 * 4096; }
  };

  static DeviceMemory& Get();

  // Forgets and unmaps everything. REQUIRES: no device is open.
  void Reset(size_t bytes_per_device);
  // Aligned to 64 KiB. Null when the device has not so much left.
  void* Allocate(int device, size_t bytes) { return Allocate(device, bytes, false, nullptr); }
  // From the device's pool, for work of `stream`: what that has queued to be freed, and what any
  // stream has freed, serves again where a piece of it is large enough.
  void* AllocatePooled(int device, size_t bytes, const void* stream) {
    return Allocate(device, bytes, true, stream);
  }
  // `p`, if it is from a pool, is to be freed by work of `stream`.
  void QueueFree(const void* p, const void* stream);
  // Gives what was freed from the device's pool back to the device.
  void Trim(int device);
  // Whether `peer` may access the pool of `device`, from which stream-ordered memory is.
  void SetPoolAccess(int device, int peer, bool access);
  // False when `p` is not the start of a live allocation.
  bool Free(void* p);
  // The device has `free_bytes` left, and what is freed from now on; until Reset.
  void Limit(int device, size_t free_bytes);
  size_t total() const;
  size_t left(int device) const;

  // Makes a device's memory accessible, until as many calls of Close.
  void Open(int device);
  void Close(int device);

  // The device in whose range the address lies, -1 when it is no device memory.
  int DeviceOf(const void* p) const {
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(p) - range_);
    return offset < kMaxDevices * kDeviceSpan ? static_cast<int>(offset / kDeviceSpan) : -1;
  }
  // True when all bytes lie in one live allocation of this device.
  bool Holds(int device, const void* p, size_t bytes) const {
    if (DeviceOf(p) != device) return false;
    const Allocation* a = Find(p);
    return a != nullptr && !a->freed.load(std::memory_order_relaxed) &&
           static_cast<size_t>(static_cast<const std::byte*>(p) - a->base) + bytes <= a->bytes;
  }
  // True when a peer that the device's memory was opened to may access this live allocation.
  bool Reaches(int peer, const void* p) const {
    const auto owner = static_cast<size_t>(DeviceOf(p));
    return !Find(p)->pooled || (pool_access_[owner].load() >> peer & 1u) != 0;
  }
  // Why Holds is false, for messages: "past the end of ...".
  std::string Problem(int device, const void* p, size_t bytes) const;

 private:
  // The thread sanitizer leaves programs little of the address space.
#ifdef RINGFILL_SMALL_ADDRESS_SPACE
  static constexpr size_t kDeviceSpan = size_t{1} << 36;
#else
  static constexpr size_t kDeviceSpan = size_t{1} << 40;
#endif
  static constexpr size_t kGranule = 64 * 1024;

  // Memory that a pool keeps, which still counts as used.
  struct Kept {
    size_t bytes;
    const void* allocation;  // what it was
    const void* stream;      // that frees it
    bool freed = false;      // not only queued to be
  };
  struct Device {
    std::vector<std::unique_ptr<Allocation>> allocations;  // freed ones too, to tell of them
    std::vector<Kept> pool;
    std::vector<Allocation*> live;
    size_t next = kGranule;  // offset of the next allocation,
    bool used_up = false;    // until the end was reached
    size_t used = 0;
    size_t most = 0;  // that may be used
    int open = 0;
  };

  DeviceMemory();
  void* Allocate(int device, size_t bytes, bool pooled, const void* stream);
  void TrimLocked(Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True when `bytes` of what the pool keeps serve `stream` again.
  bool TakeFromPool(Device& device, size_t bytes, const void* stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Allocation* Find(const void* p) const {
    return table_[static_cast<size_t>(static_cast<const std::byte*>(p) - range_) / kGranule].load(
        std::memory_order_acquire);
  }
  Device& At(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return devices_[static_cast<size_t>(device)];
  }
  // Offset of `span` bytes that no live allocation has; kDeviceSpan when there are none.
  size_t FindSpace(Device& device, size_t span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Map(int device, const Allocation& allocation, bool open);
  void Unmap(const Allocation& allocation);
  void Protect(Device& device, bool open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(const Allocation* allocation, Allocation* value);

  std::byte* range_;
  std::atomic<Allocation*>* table_;  // of each granule; mapped on demand
  int poison_file_;
  const ProtectionKeys keys_;
  // Of each device's pool: a bit for every device that may access it.
  std::array<std::atomic<unsigned>, kMaxDevices> pool_access_{};
  mutable Mutex mutex_;
  std::array<Device, kMaxDevices> devices_ ABSL_GUARDED_BY(mutex_);
  size_t total_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ringfill::cuda_emulation
