#include "engine/compute/cuda/pinned_memory.h"

#include <algorithm>

#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

constexpr size_t kBlockBytes = size_t{256} << 10;
constexpr size_t kPieceAlignment = 64;
constexpr size_t kMostFreeBytes = size_t{128} << 20;

}  // namespace

PinnedPool::Block::~Block() {
  if (data != nullptr) (void)cudaFreeHost(data);
}

absl::StatusOr<PinnedPiece> PinnedPool::Take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  if (current_ == nullptr || used_ + bytes > current_->bytes) {
    current_ = nullptr;
    RF_ASSIGN_OR_RETURN(current_, NewBlock(bytes));
    used_ = 0;
  }
  PinnedPiece piece(current_, current_->data + used_);
  used_ += bytes;
  return piece;
}

absl::StatusOr<std::shared_ptr<PinnedPool::Block>> PinnedPool::NewBlock(size_t bytes) {
  std::unique_ptr<Block> block;
  {
    MutexLock lock(&free_->mutex);
    auto& blocks = free_->blocks;
    const auto fits = std::find_if(blocks.begin(), blocks.end(),
                                   [&](const auto& b) { return b->bytes >= bytes; });
    if (fits != blocks.end()) {
      block = std::move(*fits);
      blocks.erase(fits);
      free_->bytes -= block->bytes;
    }
  }
  if (block == nullptr) {
    block = std::make_unique<Block>();
    const size_t wanted = std::max(bytes, kBlockBytes);
    void* data = nullptr;
    RF_RETURN_IF_CUDA_ERROR(-1, cudaHostAlloc(&data, wanted, cudaHostAllocPortable));
    block->data = static_cast<std::byte*>(data);
    block->bytes = wanted;
  }
  return std::shared_ptr<Block>(block.release(), [free = free_](Block* done) {
    std::unique_ptr<Block> owned(done);
    MutexLock lock(&free->mutex);
    if (free->bytes + owned->bytes > kMostFreeBytes) return;
    free->bytes += owned->bytes;
    free->blocks.push_back(std::move(owned));
  });
}

}  // namespace ringfill
