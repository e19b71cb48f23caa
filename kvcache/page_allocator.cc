#include "kvcache/page_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

absl::Status TooFew(int64_t needed, const PageAllocator& allocator) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "needs ", needed, " KV pages, ", allocator.free(), " of ", allocator.total(), " are free"));
}

}  // namespace

PageAllocator::PageAllocator(int64_t pages) {
  RF_CHECK(pages >= 0 && pages <= kNoPage);
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
  if (--references_[page] > 0) return;
  free_.push_back(page);
  if (!note_freed_) return;
  noted_.resize(references_.size());
  noted_[page] = true;
}

std::vector<PageId> PageAllocator::TakeFreed() {
  std::vector<PageId> freed;
  for (size_t page = 0; page < noted_.size(); ++page) {
    if (noted_[page]) freed.push_back(static_cast<PageId>(page));
  }
  noted_.clear();
  return freed;
}

PageList::PageList(PageList&& other) noexcept
    : allocator_(other.allocator_),
      pages_(std::exchange(other.pages_, {})),
      gaps_(std::exchange(other.gaps_, 0)) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    Clear();
    allocator_ = other.allocator_;
    pages_ = std::exchange(other.pages_, {});
    gaps_ = std::exchange(other.gaps_, 0);
  }
  return *this;
}

PageList PageList::Share(PageAllocator* allocator, std::span<const PageId> pages) {
  PageList list(allocator);
  list.pages_.assign(pages.begin(), pages.end());
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++list.gaps_;
    } else {
      allocator->Share(page);
    }
  }
  return list;
}

int64_t PageList::NeededTo(int64_t n) const { return gaps_ + std::max<int64_t>(0, n - size()); }

bool PageList::CanFillTo(int64_t n) const {
  const int64_t needed = NeededTo(n);
  return needed == 0 || needed <= allocator_->free();
}

absl::Status PageList::FillTo(int64_t n) {
  const int64_t needed = NeededTo(n);
  if (needed == 0) return absl::OkStatus();
  RF_CHECK(allocator_ != nullptr);
  if (needed > allocator_->free()) return TooFew(needed, *allocator_);
  for (PageId& page : pages_) {
    if (page == kNoPage) page = allocator_->Take();
  }
  gaps_ = 0;
  return Extend(std::max<int64_t>(0, n - size()));
}

bool PageList::shared(int64_t index) const {
  RF_CHECK(has(index));
  return allocator_->references_[pages_[static_cast<size_t>(index)]] > 1;
}

void PageList::Drop(int64_t index) {
  RF_CHECK(has(index));
  allocator_->Release(std::exchange(pages_[static_cast<size_t>(index)], kNoPage));
  ++gaps_;
}

absl::Status PageList::Extend(int64_t n) {
  RF_CHECK(n >= 0);
  if (n == 0) return absl::OkStatus();
  RF_CHECK(allocator_ != nullptr);
  if (n > allocator_->free()) return TooFew(n, *allocator_);
  pages_.reserve(pages_.size() + n);
  for (int64_t i = 0; i < n; ++i) pages_.push_back(allocator_->Take());
  return absl::OkStatus();
}

PageList PageList::Fork() const { return Share(allocator_, pages_); }

void PageList::Clear() {
  for (const PageId page : pages_) {
    if (page != kNoPage) allocator_->Release(page);
  }
  pages_.clear();
  gaps_ = 0;
}

}  // namespace ringfill
