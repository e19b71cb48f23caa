// One rank's KV memory: a slab of pages. Ids come from the leader's PageAllocator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/aligned_buffer.h"
#include "kvcache/kv_geometry.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

// The memory is mapped lazily, so an idle pool costs address space only. Threads may touch
// different pages at once; who may touch which page when is the step plan's business.
class PagePool {
 public:
  PagePool(const KvGeometry& geometry, int64_t pages);

  const KvGeometry& geometry() const { return geometry_; }
  int64_t pages() const { return pages_; }
  std::byte* base() const { return storage_.data(); }
  // REQUIRES: page < pages().
  std::byte* Page(PageId page) const;
  // Fills a page with NaN bit patterns (all ones), so that reading a freed page shows.
  void Poison(PageId page);

 private:
  KvGeometry geometry_;
  int64_t pages_;
  AlignedBuffer storage_;
};

}  // namespace ringfill
