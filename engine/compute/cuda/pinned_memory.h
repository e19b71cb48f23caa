// Pinned host memory, through which everything small goes to and from a GPU: taken in pieces of
// blocks that are used again when nothing refers to them any more.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

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

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
    ~Block();
  };
  // Blocks that nobody uses. Bounded: see kMostFreeBytes.
  struct FreeBlocks {
    Mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks ABSL_GUARDED_BY(mutex);
    size_t bytes ABSL_GUARDED_BY(mutex) = 0;
  };

  absl::StatusOr<std::shared_ptr<Block>> NewBlock(size_t bytes);

  const std::shared_ptr<FreeBlocks> free_ = std::make_shared<FreeBlocks>();
  std::shared_ptr<Block> current_;
  size_t used_ = 0;  // of the current block
};

}  // namespace ringfill
