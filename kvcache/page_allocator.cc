#include "kvcache/page_allocator.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {

PageAllocator::PageAllocator(int64_t pages) {
  RF_CHECK(pages >= 0 && pages <= std::numeric_limits<PageId>::max());
  references_.assign(pages, 0);
  free_.reserve(pages);
  // Highest first, so that the low ids, and with them the low addresses, are used first.
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

PageId PageAllocator::Take() {
  RF_CHECK(!free_.empty());
  const PageId page = free_.back();
  free_.pop_back();
  RF_CHECK(references_[page] == 0);
  references_[page] = 1;
  return page;
}

void PageAllocator::Share(PageId page) {
  RF_CHECK(page < references_.size() && references_[page] > 0);
  RF_CHECK(references_[page] < std::numeric_limits<uint32_t>::max());
  ++references_[page];
}

void PageAllocator::Release(PageId page) {
  RF_CHECK(page < references_.size() && references_[page] > 0);
  if (--references_[page] == 0) free_.push_back(page);
}

PageList::PageList(PageList&& other) noexcept
    : allocator_(other.allocator_), pages_(std::exchange(other.pages_, {})) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    Clear();
    allocator_ = other.allocator_;
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

absl::Status PageList::Extend(int64_t n) {
  RF_CHECK(n >= 0);
  if (n == 0) return absl::OkStatus();
  RF_CHECK(allocator_ != nullptr);
  if (n > allocator_->free()) {
    return absl::ResourceExhaustedError(absl::StrCat("needs ", n, " KV pages, ", allocator_->free(),
                                                     " of ", allocator_->total(), " are free"));
  }
  pages_.reserve(pages_.size() + n);
  for (int64_t i = 0; i < n; ++i) pages_.push_back(allocator_->Take());
  return absl::OkStatus();
}

PageList PageList::Fork() const {
  PageList fork(allocator_);
  fork.pages_ = pages_;
  for (PageId page : pages_) allocator_->Share(page);
  return fork;
}

void PageList::Clear() {
  for (PageId page : pages_) allocator_->Release(page);
  pages_.clear();
}

}  // namespace ringfill
