// Device memory of one GPU: taken and given back in the order of its stream, entered in a ledger.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/compute/cuda/cuda_stream.h"
#include "engine/compute/device.h"
#include "engine/compute/memory_ledger.h"

namespace ringfill {

class CudaScratch;

// Used by the host thread of its stream, which outlives it; buffers go before the stream too.
class CudaMemory {
 public:
  explicit CudaMemory(CudaStream& stream)
      : stream_(stream), ledger_(std::make_shared<MemoryLedger>()) {}

  // For work that is queued on the stream from now on, or behind such work; aligned to 256 bytes.
  // RESOURCE_EXHAUSTED naming the buffer when the device has no such memory, what is freed by work
  // that has not run yet not counted unless it is as large. Does not wait.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, std::string_view what,
                                        MemoryPool pool = MemoryPool::kScratch);
  // Gives all scratch back, so that a smaller step finds room. REQUIRES: no work is queued.
  void DropScratch();
  MemoryLedger& ledger() { return *ledger_; }
  CudaStream& stream() { return stream_; }

 private:
  friend class CudaScratch;

  CudaStream& stream_;
  std::vector<CudaScratch*> scratch_;
  const std::shared_ptr<MemoryLedger> ledger_;
};

// Scratch that grows to the largest size asked for. Work on the stream may use it in turn without
// further order: each use comes behind the one before.
class CudaScratch {
 public:
  CudaScratch(CudaMemory& memory, std::string what);
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  // At least `bytes`; the contents are lost when it grows. Called by queued work too.
  absl::StatusOr<std::byte*> Reserve(size_t bytes);
  std::byte* data() const { return buffer_.data(); }
  void Drop() { buffer_ = DeviceBuffer(); }

 private:
  CudaMemory& memory_;
  const std::string what_;
  DeviceBuffer buffer_;
};

// Small arrays on their way to the device: put together in pinned memory, sent in one copy. Used
// inside one piece of queued work, which may use what was sent until the next work sends.
//
//   Upload upload(stream, scratch);
//   const auto pages = upload.Add(list);
//   RF_RETURN_IF_ERROR(upload.Send());
//   kernel(upload.At<uint32_t>(pages))
class Upload {
 public:
  // Counted in bytes from the start.
  struct Place {
    size_t offset;
  };
  Upload(CudaStream& stream, CudaScratch& scratch) : stream_(stream), scratch_(scratch) {}

  template <typename List>
  Place Add(const List& list) {
    return AddBytes(list.data(), list.size() * sizeof(*list.data()));
  }
  Place AddBytes(const void* from, size_t bytes);
  // Zero bytes.
  Place AddZeros(size_t bytes);
  absl::Status Send();
  template <typename T>
  T* At(Place place) const {
    return reinterpret_cast<T*>(scratch_.data() + place.offset);
  }

 private:
  CudaStream& stream_;
  CudaScratch& scratch_;
  std::vector<std::byte> bytes_;
};

}  // namespace ringfill
