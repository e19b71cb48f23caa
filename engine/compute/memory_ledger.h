// How much memory a device uses, by name, and buffers that enter themselves there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/aligned_buffer.h"
#include "base/mutex.h"
#include "engine/compute/device.h"

namespace ringfill {

// Thread-safe. Counts what was asked for: memory is mapped lazily.
class MemoryLedger {
 public:
  // The first Add or Set of a name says which pool it belongs to.
  void Add(MemoryPool pool, std::string_view what, size_t bytes);
  void Remove(std::string_view what, size_t bytes);
  // The bytes of `what` are now `bytes`, for memory that others own.
  void Set(MemoryPool pool, std::string_view what, size_t bytes);
  std::vector<Device::MemoryUse> Uses() const;  // by name

 private:
  struct Use {
    MemoryPool pool;
    size_t bytes = 0;
    size_t peak = 0;
  };
  Use& Find(MemoryPool pool, std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Use, std::less<>> uses_ ABSL_GUARDED_BY(mutex_);
};

// Scratch that grows to the largest size asked for. Not thread-safe.
class LedgerBuffer {
 public:
  LedgerBuffer(std::shared_ptr<MemoryLedger> ledger, std::string what)
      : ledger_(std::move(ledger)), what_(std::move(what)) {}
  ~LedgerBuffer();
  LedgerBuffer(const LedgerBuffer&) = delete;
  LedgerBuffer& operator=(const LedgerBuffer&) = delete;

  // At least `bytes`; the contents are lost when it grows.
  void Reserve(size_t bytes);
  std::byte* data() const { return buffer_.data(); }
  template <typename T>
  T* as() const {
    return buffer_.as<T>();
  }

 private:
  const std::shared_ptr<MemoryLedger> ledger_;
  const std::string what_;
  AlignedBuffer buffer_;
};

}  // namespace ringfill
