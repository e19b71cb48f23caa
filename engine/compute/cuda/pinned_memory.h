// Pinned host memory, through which everything small goes to and from a GPU: taken in pieces of
// blocks that are used again when nothing refers to them any more. Pinning and unpinning make CUDA
// wait for all GPUs: blocks are kept to the end, so that steps of a size seen before do neither.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"

namespace ringfill {

// Keeps a block from being used again.
using PinnedPiece = std::shared_ptr<std::byte>;

// Used by one thread at a time; pieces may go on any thread, and outlive the pool.
class PinnedPool {
 public:
  // Aligned to 64 bytes. RESOURCE_EXHAUSTED when the host has no more memory to pin.
  absl::StatusOr<PinnedPiece> Take(size_t bytes);
  // Pins so many more blocks of at least `bytes`, for pieces to come.
  absl::Status Add(size_t bytes, int blocks);

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
    ~Block();
  };
  // Blocks that nobody uses, by size: of each, a power of two, at most as many as were ever in use
  // at once.
  struct FreeBlocks {
    Mutex mutex;
    std::multimap<size_t, std::unique_ptr<Block>> blocks ABSL_GUARDED_BY(mutex);
  };

  absl::StatusOr<std::shared_ptr<Block>> NewBlock(size_t bytes);
  static absl::StatusOr<std::unique_ptr<Block>> Pin(size_t bytes);

  const std::shared_ptr<FreeBlocks> free_ = std::make_shared<FreeBlocks>();
  std::shared_ptr<Block> current_;
  size_t used_ = 0;  // of the current block
};

}  // namespace ringfill
