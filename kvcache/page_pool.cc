#include "kvcache/page_pool.h"

#include <cstring>
#include <limits>

#include "base/check.h"

namespace ringfill {
namespace {

size_t PoolBytes(const KvGeometry& geometry, int64_t pages) {
  const size_t page_bytes = geometry.PageBytes();
  RF_CHECK(page_bytes > 0 && pages >= 0);
  RF_CHECK(static_cast<size_t>(pages) <= std::numeric_limits<size_t>::max() / page_bytes);
  return static_cast<size_t>(pages) * page_bytes;
}

}  // namespace

PagePool::PagePool(const KvGeometry& geometry, int64_t pages)
    : geometry_(geometry), pages_(pages), storage_(PoolBytes(geometry, pages)) {}

std::byte* PagePool::Page(PageId page) const {
  RF_DCHECK(static_cast<int64_t>(page) < pages_);
  return storage_.data() + static_cast<size_t>(page) * geometry_.PageBytes();
}

void PagePool::Poison(PageId page) { std::memset(Page(page), 0xff, geometry_.PageBytes()); }

}  // namespace ringfill
