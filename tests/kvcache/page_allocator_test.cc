#include "kvcache/page_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ringfill {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

std::vector<PageId> Ids(const PageList& list) { return {list.pages().begin(), list.pages().end()}; }

TEST(PageAllocatorTest, CountsWhatListsHold) {
  PageAllocator allocator(10);
  EXPECT_EQ(allocator.total(), 10);
  EXPECT_EQ(allocator.free(), 10);
  {
    PageList list(&allocator);
    ASSERT_TRUE(list.Extend(3).ok());
    ASSERT_TRUE(list.Extend(4).ok());
    ASSERT_TRUE(list.Extend(0).ok());
    EXPECT_EQ(list.size(), 7);
    EXPECT_EQ(allocator.used(), 7);
    const std::vector<PageId> ids = Ids(list);
    EXPECT_EQ(std::set<PageId>(ids.begin(), ids.end()).size(), 7u);
    for (const PageId page : ids) EXPECT_LT(page, 10u);
  }
  EXPECT_EQ(allocator.free(), 10);
}

TEST(PageAllocatorTest, ExtendTakesAllOrNothing) {
  PageAllocator allocator(8);
  PageList list(&allocator);
  ASSERT_TRUE(list.Extend(5).ok());
  const std::vector<PageId> before = Ids(list);
  const absl::Status status = list.Extend(4);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 4 KV pages, 3 of 8 are free"));
  EXPECT_EQ(Ids(list), before);
  EXPECT_EQ(allocator.free(), 3);
  EXPECT_TRUE(list.Extend(3).ok());
  EXPECT_EQ(list.Extend(1).code(), absl::StatusCode::kResourceExhausted);
}

TEST(PageAllocatorTest, ForkSharesPagesUntilTheLastOwnerLetsGo) {
  PageAllocator allocator(4);
  PageList first(&allocator);
  ASSERT_TRUE(first.Extend(2).ok());
  PageList fork = first.Fork();
  EXPECT_THAT(Ids(fork), ElementsAreArray(Ids(first)));
  EXPECT_EQ(allocator.used(), 2);
  ASSERT_TRUE(fork.Extend(1).ok());
  EXPECT_EQ(allocator.used(), 3);
  first.Clear();
  EXPECT_EQ(first.size(), 0);
  EXPECT_EQ(allocator.used(), 3);
  fork.Clear();
  EXPECT_EQ(allocator.used(), 0);
}

TEST(PageAllocatorTest, MovesKeepOwnershipInOnePlace) {
  PageAllocator allocator(6);
  PageList a(&allocator);
  ASSERT_TRUE(a.Extend(2).ok());
  const std::vector<PageId> ids = Ids(a);
  PageList b(std::move(a));
  EXPECT_EQ(Ids(b), ids);
  EXPECT_EQ(allocator.used(), 2);
  PageList c(&allocator);
  ASSERT_TRUE(c.Extend(3).ok());
  c = std::move(b);
  EXPECT_EQ(Ids(c), ids);
  EXPECT_EQ(allocator.used(), 2);
  PageList& same = c;
  c = std::move(same);
  EXPECT_EQ(Ids(c), ids);
  c = PageList();
  EXPECT_EQ(allocator.used(), 0);
}

TEST(PageAllocatorTest, GapsAreFilledAllOrNone) {
  PageAllocator allocator(6);
  PageList list(&allocator);
  ASSERT_TRUE(list.Extend(4).ok());
  const std::vector<PageId> ids = Ids(list);
  list.Drop(1);
  list.Drop(2);
  EXPECT_EQ(allocator.used(), 2);
  EXPECT_EQ(list.size(), 4);
  EXPECT_TRUE(list.has(0));
  EXPECT_FALSE(list.has(1));
  EXPECT_FALSE(list.has(4));
  EXPECT_EQ(list.NeededTo(3), 2);
  EXPECT_EQ(list.NeededTo(7), 5);
  EXPECT_FALSE(list.CanFillTo(7));
  EXPECT_EQ(list.FillTo(7).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(allocator.used(), 2);
  EXPECT_TRUE(list.CanFillTo(6));
  ASSERT_TRUE(list.FillTo(6).ok());
  EXPECT_EQ(allocator.used(), 6);
  EXPECT_EQ(list.size(), 6);
  EXPECT_EQ(list.pages()[0], ids[0]);
  EXPECT_EQ(list.pages()[3], ids[3]);
  const std::vector<PageId> filled = Ids(list);
  EXPECT_EQ(std::set<PageId>(filled.begin(), filled.end()).size(), 6u);
  list.Clear();
  EXPECT_EQ(allocator.used(), 0);
}

TEST(PageAllocatorTest, SharedListsKeepTheirGaps) {
  PageAllocator allocator(6);
  PageList first(&allocator);
  ASSERT_TRUE(first.Extend(3).ok());
  EXPECT_FALSE(first.shared(0));
  const std::vector<PageId> some = {Ids(first)[2], kNoPage, Ids(first)[0]};
  PageList second = PageList::Share(&allocator, some);
  EXPECT_THAT(Ids(second), ElementsAreArray(some));
  EXPECT_EQ(second.NeededTo(3), 1);
  EXPECT_TRUE(first.shared(0));
  EXPECT_FALSE(first.shared(1));
  EXPECT_EQ(allocator.used(), 3);
  PageList third = second.Fork();
  EXPECT_EQ(third.NeededTo(3), 1);
  first.Clear();
  EXPECT_EQ(allocator.used(), 2);
  PageList moved = std::move(third);
  EXPECT_EQ(moved.NeededTo(3), 1);
  second.Clear();
  moved.Clear();
  EXPECT_EQ(allocator.used(), 0);
}

TEST(PageAllocatorTest, FreedPagesAreNotedOnceTheLastOwnerLetsGo) {
  PageAllocator allocator(5);
  PageList before(&allocator);
  ASSERT_TRUE(before.Extend(1).ok());
  before.Clear();
  allocator.NoteFreed();
  EXPECT_TRUE(allocator.TakeFreed().empty());
  PageList list(&allocator);
  ASSERT_TRUE(list.Extend(2).ok());
  std::vector<PageId> ids = Ids(list);
  PageList fork = list.Fork();
  list.Clear();
  EXPECT_TRUE(allocator.TakeFreed().empty());
  fork.Clear();
  ASSERT_TRUE(list.Extend(2).ok());
  list.Clear();
  std::sort(ids.begin(), ids.end());
  EXPECT_THAT(allocator.TakeFreed(), ElementsAreArray(ids));
  EXPECT_TRUE(allocator.TakeFreed().empty());
}

TEST(PageAllocatorTest, EmptyPoolRefuses) {
  PageAllocator allocator(0);
  PageList list(&allocator);
  EXPECT_EQ(list.Extend(1).code(), absl::StatusCode::kResourceExhausted);
}

// Lists beside a plain model of who owns what: no page has two owners that did not fork it, and
// the allocator's counts are the model's after every one of 100,000 operations.
TEST(PageAllocatorTest, RandomOperationsAgreeWithAModel) {
  constexpr int kPages = 64;
  constexpr size_t kMaxLists = 12;
  PageAllocator allocator(kPages);
  std::vector<PageList> lists;
  std::vector<std::vector<PageId>> model;  // parallel to lists
  std::map<PageId, int> owners;
  std::mt19937 random(2024);
  const auto drop = [&](size_t i) {
    for (const PageId page : model[i]) {
      if (--owners[page] == 0) owners.erase(page);
    }
  };
  for (int op = 0; op < 100000; ++op) {
    const size_t i = lists.empty() ? 0 : random() % lists.size();
    const unsigned kind = random() % 8;
    if (lists.empty() || (kind == 0 && lists.size() < kMaxLists)) {
      lists.emplace_back(&allocator);
      model.emplace_back();
    } else if (kind <= 3) {
      const int64_t n = random() % 9;
      const absl::Status status = lists[i].Extend(n);
      ASSERT_EQ(status.ok(), n <= kPages - static_cast<int64_t>(owners.size()));
      if (status.ok()) {
        const std::vector<PageId> ids = Ids(lists[i]);
        ASSERT_EQ(ids.size(), model[i].size() + n);
        for (size_t k = model[i].size(); k < ids.size(); ++k) {
          ASSERT_LT(ids[k], static_cast<PageId>(kPages));
          ASSERT_TRUE(owners.emplace(ids[k], 1).second) << "page " << ids[k] << " had an owner";
          model[i].push_back(ids[k]);
        }
      }
    } else if (kind <= 5 && lists.size() < kMaxLists) {
      lists.push_back(lists[i].Fork());
      model.push_back(model[i]);
      for (const PageId page : model[i]) ++owners[page];
    } else if (kind == 6) {
      drop(i);
      model[i].clear();
      lists[i].Clear();
    } else {
      drop(i);
      lists.erase(lists.begin() + static_cast<std::ptrdiff_t>(i));
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ASSERT_EQ(allocator.used(), static_cast<int64_t>(owners.size())) << "operation " << op;
    if (!lists.empty()) {
      ASSERT_EQ(Ids(lists[op % lists.size()]), model[op % lists.size()]);
    }
  }
  lists.clear();
  EXPECT_EQ(allocator.free(), kPages);
}

}  // namespace
}  // namespace ringfill
