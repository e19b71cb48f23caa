// Page ids and reference counts of one rank's pool; no memory. The leader allocates for every rank,
// so placement is decided in one place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace ringfill {

using PageId = uint32_t;

// Not thread-safe: used by the leader alone. Must outlive every PageList made from it.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t pages);

  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total() - free(); }

 private:
  friend class PageList;
  PageId Take();              // REQUIRES: free() > 0; the page gets one reference
  void Share(PageId page);    // REQUIRES: the page is in use
  void Release(PageId page);  // REQUIRES: the page is in use

  std::vector<uint32_t> references_;  // [pages], 0: free
  std::vector<PageId> free_;          // a stack
};

// The pages that one sequence holds on one rank, in local order; releases them when destroyed.
// Movable; not thread-safe.
class PageList {
 public:
  PageList() = default;
  explicit PageList(PageAllocator* allocator) : allocator_(allocator) {}
  ~PageList() { Clear(); }
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;

  // Takes `n` more pages, or none: RESOURCE_EXHAUSTED with the numbers.
  absl::Status Extend(int64_t n);
  // Another list of the same pages; each gets one more reference.
  PageList Fork() const;
  void Clear();

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  std::span<const PageId> pages() const { return pages_; }

 private:
  PageAllocator* allocator_ = nullptr;
  std::vector<PageId> pages_;
};

}  // namespace ringfill
