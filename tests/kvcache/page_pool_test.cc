#include "kvcache/page_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

namespace ringfill {
namespace {

KvGeometry Small() {
  KvGeometry geometry;
  geometry.layers = 3;
  geometry.kv_heads = 2;
  geometry.page_tokens = 16;
  geometry.block_bytes = 16 * 8 * sizeof(float);
  return geometry;
}

TEST(KvGeometryTest, BlocksTileThePageWithoutOverlap) {
  const KvGeometry geometry = Small();
  std::set<size_t> offsets;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      offsets.insert(geometry.KOffset(layer, head));
      offsets.insert(geometry.VOffset(layer, head));
    }
  }
  ASSERT_EQ(offsets.size(), 12u);
  size_t expected = 0;
  for (const size_t offset : offsets) {
    EXPECT_EQ(offset, expected);
    expected += geometry.block_bytes;
  }
  EXPECT_EQ(geometry.PageBytes(), expected);
  EXPECT_EQ(geometry.VOffset(1, 0) - geometry.KOffset(1, 0), 2 * geometry.block_bytes);
}

TEST(KvGeometryTest, OffsetsPastFourGigabytes) {
  KvGeometry geometry;
  geometry.layers = 100;
  geometry.kv_heads = 128;
  geometry.page_tokens = 256;
  geometry.block_bytes = 256 * 1024;
  EXPECT_EQ(geometry.VOffset(99, 127), size_t{100} * 2 * 128 * 256 * 1024 - 256 * 1024);
}

TEST(PagePoolTest, PagesLieOneAfterAnotherAndStartAsZeros) {
  const PagePool pool(Small(), 5);
  EXPECT_EQ(pool.pages(), 5);
  EXPECT_EQ(pool.Page(0), pool.base());
  for (PageId page = 0; page < 5; ++page) {
    EXPECT_EQ(pool.Page(page), pool.base() + page * Small().PageBytes());
    for (size_t i = 0; i < Small().PageBytes(); ++i) {
      ASSERT_EQ(pool.Page(page)[i], std::byte{0}) << page << " " << i;
    }
  }
}

TEST(PagePoolTest, PoisonFillsOnePageWithNan) {
  PagePool pool(Small(), 3);
  std::memset(pool.Page(0), 1, Small().PageBytes());
  std::memset(pool.Page(2), 2, Small().PageBytes());
  pool.Poison(1);
  for (size_t i = 0; i < Small().PageBytes(); ++i) {
    ASSERT_EQ(pool.Page(0)[i], std::byte{1});
    ASSERT_EQ(pool.Page(1)[i], std::byte{0xff});
    ASSERT_EQ(pool.Page(2)[i], std::byte{2});
  }
  float value;
  std::memcpy(&value, pool.Page(1), sizeof(value));
  EXPECT_TRUE(std::isnan(value));
}

int64_t ResidentBytes() {
  int64_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

TEST(PagePoolTest, AnIdlePoolCostsAddressSpaceOnly) {
  KvGeometry geometry = Small();
  geometry.block_bytes = 1 << 20;
  const int64_t before = ResidentBytes();
  ASSERT_GT(before, 0);
  PagePool pool(geometry, (int64_t{1} << 30) / static_cast<int64_t>(geometry.PageBytes()));
  const PageId last = static_cast<PageId>(pool.pages() - 1);
  pool.Page(last)[geometry.PageBytes() - 1] = std::byte{7};
  EXPECT_EQ(pool.Page(last)[geometry.PageBytes() - 1], std::byte{7});
  EXPECT_LT(ResidentBytes() - before, int64_t{64} << 20);
}

}  // namespace
}  // namespace ringfill
