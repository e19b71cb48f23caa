#include "engine/compute/cuda/cuda_memory.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

constexpr size_t kListAlignment = 16;

// Freed memory stays with the device's pool, in pieces that may all be too small. Those that work
// on the GPU is done with become the device's again.
void Trim(int device) {
  cudaMemPool_t pool = nullptr;
  IgnoreCuda(cudaDeviceGetDefaultMemPool(&pool, device));
  if (pool != nullptr) IgnoreCuda(cudaMemPoolTrimTo(pool, 0));
}

}  // namespace

absl::StatusOr<DeviceBuffer> CudaMemory::Allocate(size_t bytes, std::string_view what,
                                                  MemoryPool pool) {
  if (bytes == 0) return DeviceBuffer();
  const int device = stream_.device();
  RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
  void* data = nullptr;
  cudaError_t error = cudaMallocAsync(&data, bytes, stream_.get());
  if (error == cudaErrorMemoryAllocation) {
    IgnoreCuda(error);
    Trim(device);
    error = cudaMallocAsync(&data, bytes, stream_.get());
  }
  if (error != cudaSuccess) {
    return CudaStatus(
        error, absl::StrCat("taking ", bytes, " bytes for \"", std::string(what), "\""), device);
  }
  ledger_->Add(pool, what, bytes);
  return DeviceBuffer(static_cast<std::byte*>(data), bytes,
                      [stream = &stream_, device, ledger = ledger_, what = std::string(what),
                       bytes](std::byte* freed) {
                        IgnoreCuda(cudaSetDevice(device));
                        IgnoreCuda(cudaFreeAsync(freed, stream->get()));
                        ledger->Remove(what, bytes);
                      });
}

void CudaMemory::DropScratch() {
  for (CudaScratch* scratch : scratch_) scratch->Drop();
}

CudaScratch::CudaScratch(CudaMemory& memory, std::string what)
    : memory_(memory), what_(std::move(what)) {
  memory_.scratch_.push_back(this);
}

CudaScratch::~CudaScratch() { std::erase(memory_.scratch_, this); }

absl::StatusOr<std::byte*> CudaScratch::Reserve(size_t bytes) {
  if (buffer_.size() < bytes) {
    // The old one goes first, so that the two never count together.
    Drop();
    RF_ASSIGN_OR_RETURN(buffer_, memory_.Allocate(bytes, what_));
  }
  return buffer_.data();
}

Upload::Place Upload::AddBytes(const void* from, size_t bytes) {
  const Place place = AddZeros(bytes);
  if (bytes > 0) std::memcpy(bytes_.data() + place.offset, from, bytes);
  return place;
}

Upload::Place Upload::AddZeros(size_t bytes) {
  const Place place{bytes_.size()};
  bytes_.resize(bytes_.size() + (bytes + kListAlignment - 1) / kListAlignment * kListAlignment);
  return place;
}

absl::Status Upload::Send() {
  if (bytes_.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(std::byte* const to, scratch_.Reserve(bytes_.size()));
  std::byte* const from = stream_.Pinned(bytes_.size());
  std::memcpy(from, bytes_.data(), bytes_.size());
  return CudaStatus(cudaMemcpyAsync(to, from, bytes_.size(), cudaMemcpyHostToDevice, stream_.get()),
                    "cudaMemcpyAsync", stream_.device());
}

}  // namespace ringfill
