#include "engine/compute/cuda/kernels/kv_pages.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kvcache/kv_geometry.h"
#include "tests/engine/compute/cuda/device_array.h"
#include "tests/engine/compute/cuda/far_pages.h"

namespace ringfill::gpu {
namespace {

std::vector<std::byte> RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  return out;
}

KvGeometry Geometry(int head_dim, int page_tokens) {
  return {.layers = 3,
          .kv_heads = 2,
          .page_tokens = page_tokens,
          .block_bytes = static_cast<size_t>(head_dim * page_tokens * 2)};
}

TEST(CopyPages, TakesOneLayerOfEach) {
  for (const int head_dim : {64, 80, 256}) {
    const KvGeometry geometry = Geometry(head_dim, 16);
    const std::vector<std::byte> pool = RandomBytes(7 * geometry.PageBytes(), 1);
    const DeviceArray<std::byte> device_pool(pool);
    for (const std::vector<uint32_t>& pages : {std::vector<uint32_t>{}, {3}, {6, 0, 2, 2, 5}}) {
      const size_t layer_bytes = geometry.LayerBytes();
      const DeviceArray<uint32_t> device_pages(pages);
      const DeviceArray<std::byte> shard(pages.size() * layer_bytes);
      ASSERT_EQ(CopyPages({.pool = device_pool.data(),
                           .page_stride = static_cast<int64_t>(geometry.PageBytes()),
                           .layer_offset = static_cast<int64_t>(geometry.LayerOffset(1)),
                           .layer_bytes = static_cast<int64_t>(layer_bytes),
                           .pages = device_pages.data(),
                           .count = static_cast<int64_t>(pages.size()),
                           .shard = shard.data()},
                          nullptr),
                0);
      std::vector<std::byte> want;
      for (const uint32_t page : pages) {
        const auto first = pool.begin() + static_cast<ptrdiff_t>(page * geometry.PageBytes() +
                                                                 geometry.LayerOffset(1));
        want.insert(want.end(), first, first + static_cast<ptrdiff_t>(layer_bytes));
      }
      EXPECT_EQ(shard.Read(), want);
    }
  }
}

TEST(StoreRows, PutsRowsOfAnInboxIntoPages) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    constexpr int kPageTokens = 16;
    const KvGeometry geometry = Geometry(head_dim, kPageTokens);
    const auto head_bytes = static_cast<size_t>(head_dim) * 2;
    constexpr int64_t kRows = 19;
    const std::vector<std::byte> inbox = RandomBytes(kRows * 4 * head_bytes, 2);
    std::vector<std::byte> pool = RandomBytes(5 * geometry.PageBytes(), 3);
    std::vector<KvTarget> targets;
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t token = r + 9;
      targets.push_back({static_cast<uint32_t>(4 - token / kPageTokens),
                         static_cast<int32_t>(token % kPageTokens), -1});
    }
    targets[5] = {};
    const DeviceArray<std::byte> device_inbox(inbox), device_pool(pool);
    const DeviceArray<KvTarget> device_targets(targets);
    ASSERT_EQ(StoreRows({.inbox = device_inbox.data(),
                         .targets = device_targets.data(),
                         .rows = kRows,
                         .kv_heads = 2,
                         .head_dim = head_dim,
                         .pages = {device_pool.data(), static_cast<int64_t>(geometry.PageBytes()),
                                   static_cast<int64_t>(geometry.KOffset(2, 0)),
                                   static_cast<int64_t>(geometry.VOffset(2, 0)), kPageTokens}},
                        nullptr),
              0);
    for (size_t r = 0; r < targets.size(); ++r) {
      if (targets[r].page == KvTarget::kNoPage) continue;
      std::byte* page = pool.data() + targets[r].page * geometry.PageBytes();
      const size_t within = static_cast<size_t>(targets[r].token_in_page) * head_bytes;
      for (int head = 0; head < 2; ++head) {
        const std::byte* row = inbox.data() + (r * 4 + static_cast<size_t>(head)) * head_bytes;
        std::memcpy(page + geometry.KOffset(2, head) + within, row, head_bytes);
        std::memcpy(page + geometry.VOffset(2, head) + within, row + 2 * head_bytes, head_bytes);
      }
    }
    EXPECT_EQ(device_pool.Read(), pool) << head_dim;
  }
}

TEST(KvPages, OffsetsAre64Bit) {
  constexpr int kDim = 64, kPageTokens = 16;
  constexpr size_t kHeadBytes = kDim * 2;
  const KvGeometry geometry = Geometry(kDim, kPageTokens);
  FarPages far;
  // The last page's layer, copied out.
  const std::vector<std::byte> page = RandomBytes(geometry.PageBytes(), 5);
  far.Write(3, page, cudaMemcpyHostToDevice);
  const DeviceArray<uint32_t> last(std::vector<uint32_t>{3});
  const DeviceArray<std::byte> shard(geometry.LayerBytes());
  ASSERT_EQ(CopyPages({.pool = far.base(),
                       .page_stride = FarPages::kStride,
                       .layer_offset = static_cast<int64_t>(geometry.LayerOffset(1)),
                       .layer_bytes = static_cast<int64_t>(geometry.LayerBytes()),
                       .pages = last.data(),
                       .count = 1,
                       .shard = shard.data()},
                      nullptr),
            0);
  const auto layer = page.begin() + static_cast<ptrdiff_t>(geometry.LayerOffset(1));
  EXPECT_EQ(shard.Read(),
            std::vector<std::byte>(layer, layer + static_cast<ptrdiff_t>(geometry.LayerBytes())));
  // A row into it.
  const std::vector<std::byte> row = RandomBytes(4 * kHeadBytes, 6);
  const DeviceArray<std::byte> inbox(row);
  const DeviceArray<KvTarget> targets(std::vector<KvTarget>{{3, 7, -1}});
  ASSERT_EQ(StoreRows({.inbox = inbox.data(),
                       .targets = targets.data(),
                       .rows = 1,
                       .kv_heads = 2,
                       .head_dim = kDim,
                       .pages = {far.base(), FarPages::kStride,
                                 static_cast<int64_t>(geometry.KOffset(2, 0)),
                                 static_cast<int64_t>(geometry.VOffset(2, 0)), kPageTokens}},
                      nullptr),
            0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(far.Read(3, static_cast<int64_t>(geometry.KOffset(2, 0) + 7 * kHeadBytes), kHeadBytes),
            std::vector<std::byte>(row.begin(), row.begin() + kHeadBytes));
  EXPECT_EQ(far.Read(3, static_cast<int64_t>(geometry.VOffset(2, 1) + 7 * kHeadBytes), kHeadBytes),
            std::vector<std::byte>(row.begin() + 3 * kHeadBytes, row.end()));
}

TEST(PoisonPages, FillsWholePagesAlone) {
  constexpr size_t kStride = 4112;
  std::vector<std::byte> pool = RandomBytes(6 * kStride, 4);
  const DeviceArray<std::byte> device_pool(pool);
  const DeviceArray<uint32_t> pages(std::vector<uint32_t>{4, 1});
  ASSERT_EQ(PoisonPages(device_pool.data(), kStride, pages.data(), 2, nullptr), 0);
  ASSERT_EQ(PoisonPages(device_pool.data(), kStride, pages.data(), 0, nullptr), 0);
  for (const size_t page : {4, 1}) std::memset(pool.data() + page * kStride, 0xff, kStride);
  EXPECT_EQ(device_pool.Read(), pool);
}

}  // namespace
}  // namespace ringfill::gpu
