// Page ids and reference counts of one rank's pool; no memory. The leader allocates for every rank,
// so placement is decided in one place.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"

namespace ringfill {

using PageId = uint32_t;
// A place in a PageList that has no page.
inline constexpr PageId kNoPage = std::numeric_limits<PageId>::max();

// Not thread-safe: used by the leader alone. Must outlive every PageList made from it.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t pages);

  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total() - free(); }

  // From now on pages that come free are noted, for someone to overwrite them.
  void NoteFreed() { note_freed_ = true; }
  // Those noted since the last call, ascending, each once; some may be in use again.
  std::vector<PageId> TakeFreed();

 private:
  friend class PageList;
  PageId Take();              // REQUIRES: free() > 0; the page gets one reference
  void Share(PageId page);    // REQUIRES: the page is in use
  void Release(PageId page);  // REQUIRES: the page is in use

  std::vector<uint32_t> references_;  // [pages], 0: free
  std::vector<PageId> free_;          // a stack
  bool note_freed_ = false;
  std::vector<bool> noted_;  // [pages] while noting
};

// The pages that one sequence holds on one rank, in local order; releases them when destroyed. May
// have gaps, where what a page held is lost or not there yet. Movable; not thread-safe.
class PageList {
 public:
  PageList() = default;
  explicit PageList(PageAllocator* allocator) : allocator_(allocator) {}
  ~PageList() { Clear(); }
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;

  // A list of `pages` that others hold too, or gaps where kNoPage; each page gets one more
  // reference.
  static PageList Share(PageAllocator* allocator, std::span<const PageId> pages);

  // Takes `n` more pages, or none: RESOURCE_EXHAUSTED with the numbers.
  absl::Status Extend(int64_t n);
  // Takes pages for all gaps and up to `n` in all, or none: RESOURCE_EXHAUSTED with the numbers.
  absl::Status FillTo(int64_t n);
  // How many pages FillTo(n) takes.
  int64_t NeededTo(int64_t n) const;
  bool CanFillTo(int64_t n) const;
  // Another list of the same pages; each gets one more reference.
  PageList Fork() const;
  // Lets go of one page and leaves a gap.
  void Drop(int64_t index);
  void Clear();

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  bool has(int64_t index) const {
    return index < size() && pages_[static_cast<size_t>(index)] != kNoPage;
  }
  // Somebody else holds the page too. REQUIRES: has(index).
  bool shared(int64_t index) const;
  std::span<const PageId> pages() const { return pages_; }

 private:
  PageAllocator* allocator_ = nullptr;
  std::vector<PageId> pages_;
  int64_t gaps_ = 0;
};

}  // namespace ringfill
