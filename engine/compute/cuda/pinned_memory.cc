#include "engine/compute/cuda/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

constexpr size_t kLeastBlockBytes = size_t{256} << 10;
constexpr size_t kPieceAlignment = 64;

}  // namespace

PinnedPool::Block::~Block() {
  if (data != nullptr) IgnoreCuda(cudaFreeHost(data));
}

absl::StatusOr<PinnedPiece> PinnedPool::Take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  if (bytes > kLeastBlockBytes / 2) {
    // By itself, or small pieces that come next would hold a large block.
    RF_ASSIGN_OR_RETURN(const std::shared_ptr<Block> own, NewBlock(bytes));
    return PinnedPiece(own, own->data);
  }
  if (current_ == nullptr || used_ + bytes > current_->bytes) {
    current_ = nullptr;
    RF_ASSIGN_OR_RETURN(current_, NewBlock(bytes));
    used_ = 0;
  }
  PinnedPiece piece(current_, current_->data + used_);
  used_ += bytes;
  return piece;
}

absl::Status PinnedPool::Add(size_t bytes, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    RF_ASSIGN_OR_RETURN(std::unique_ptr<Block> block, Pin(bytes));
    MutexLock lock(&free_->mutex);
    free_->blocks.emplace(block->bytes, std::move(block));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PinnedPool::Block>> PinnedPool::Pin(size_t bytes) {
  // Powers of two, so that lists that grow from step to step seldom outgrow their block.
  const size_t wanted = std::bit_ceil(std::max(bytes, kLeastBlockBytes));
  void* data = nullptr;
  RF_RETURN_IF_CUDA_ERROR(-1, cudaHostAlloc(&data, wanted, cudaHostAllocPortable));
  auto block = std::make_unique<Block>();
  block->data = static_cast<std::byte*>(data);
  block->bytes = wanted;
  return block;
}

absl::StatusOr<std::shared_ptr<PinnedPool::Block>> PinnedPool::NewBlock(size_t bytes) {
  std::unique_ptr<Block> block;
  {
    MutexLock lock(&free_->mutex);
    // The smallest that fits, which leaves large ones to large pieces.
    const auto fits = free_->blocks.lower_bound(bytes);
    if (fits != free_->blocks.end()) {
      block = std::move(fits->second);
      free_->blocks.erase(fits);
    }
  }
  if (block == nullptr) {
    RF_ASSIGN_OR_RETURN(block, Pin(bytes));
  }
  return std::shared_ptr<Block>(block.release(), [free = free_](Block* done) {
    std::unique_ptr<Block> owned(done);
    MutexLock lock(&free->mutex);
    free->blocks.emplace(owned->bytes, std::move(owned));
  });
}

}  // namespace ringfill
