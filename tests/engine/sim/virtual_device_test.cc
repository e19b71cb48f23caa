// The simulated cost of single operations, against figures worked out by hand.
#include "engine/sim/virtual_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ringfill {
namespace {

// width 8, 4 heads over 2 KV heads of size 4, pages of 4 tokens, bf16 KV.
ModelShape TinyShape() {
  ModelShape shape;
  shape.layers = 2;
  shape.width = 8;
  shape.ffn_width = 16;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 4;
  shape.vocab = 32;
  shape.stored_weight_bytes = 0.5;
  shape.page_tokens = 4;
  return shape;
}

DeviceFigures RoundFigures() {
  DeviceFigures f;
  f.product_flops_per_s = 1024;
  f.expand_weights_per_s = 64;
  f.product_row_granule = 4;
  // 4 rows take 0.5 s a key, 1 row takes 0.125 s: 0.125 s a row and key, nothing a key.
  f.large_tile = {4, 4 * 16 / 0.5};
  f.small_tile = {1, 16 / 0.125};
  f.token_bytes_per_s = 16;
  f.token_flops_per_s = 256;
  f.copy_bytes_per_s = 256;
  f.op_overhead_s = 1.0 / 1024;
  return f;
}

struct Rank {
  explicit Rank(const DeviceFigures& figures = RoundFigures())
      : device(TinyShape(), figures, 100, time) {}
  // Seconds since the last call, less the overhead of one operation.
  double Took() { return device.stream().TakeTimes().busy_s - 1.0 / 1024; }
  RankTime time;
  VirtualDevice device;
};

// What the cost does not depend on is left out.
struct Layers {
  int finish = -1;
  int project = -1;
  bool only_wanted = false;
  uint64_t stopped = 0;
};
void RunLayers(Rank& rank, std::shared_ptr<const RowBatch> batch, const Layers& what) {
  Device::LayersArgs args{};
  args.finish = what.finish;
  args.project = what.project;
  args.only_wanted = what.only_wanted;
  args.stopped = what.stopped;
  args.batch = std::move(batch);
  rank.device.RunLayers(args);
}

void Attend(Rank& rank, std::shared_ptr<const AttendBatch> batch, bool only_wanted = false) {
  Device::AttendArgs args{};
  args.label.kind = OpKind::kAttend;
  args.rows = static_cast<int64_t>(batch->visible.size());
  args.batch = std::move(batch);
  args.only_wanted = only_wanted;
  rank.device.Attend(args);
}

RowTile Tile(int64_t row, int64_t rows, uint64_t chunks, bool wanted) {
  return {row, rows, 0, 0, 0, 0, chunks, wanted};
}

std::shared_ptr<RowBatch> Rows(std::vector<RowTile> tiles) {
  auto batch = std::make_shared<RowBatch>();
  int64_t rows = 0;
  for (const RowTile& tile : tiles) rows += tile.rows;
  batch->position.resize(static_cast<size_t>(rows));
  batch->tiles = std::move(tiles);
  return batch;
}

TEST(VirtualDevice, LayersCostTheirWeightsAndRowTiles) {
  Rank rank;
  // q, k, v: 8 * (16 + 2 * 8) = 256 weights; o, gate, up, down: 16 * 8 + 3 * 16 * 8 = 512.
  auto batch = Rows({Tile(0, 4, 1, false), Tile(4, 1, 2, true)});
  RunLayers(rank, batch, {.project = 0});
  // Tiles of 4 and 1 rows count as 8: 256 / 64 + 2 * 8 * 256 / 1024.
  EXPECT_DOUBLE_EQ(rank.Took(), 4.0 + 4.0);
  RunLayers(rank, batch, {.finish = 0, .project = 1});
  EXPECT_DOUBLE_EQ(rank.Took(), 8.0 + 8.0 + 4.0 + 4.0);
  RunLayers(rank, batch, {.finish = 1, .only_wanted = true});
  EXPECT_DOUBLE_EQ(rank.Took(), 8.0 + 4.0);
  RunLayers(rank, batch, {.finish = 0, .project = 1, .stopped = 1});
  EXPECT_DOUBLE_EQ(rank.Took(), 8.0 + 4.0 + 4.0 + 2.0);
  EXPECT_EQ(rank.device.TakeCounters().product_rows, 5 + 2 * 5 + 1 + 2 * 1);
}

TEST(VirtualDevice, AttentionCostsVisiblePagesAndCountsPairs) {
  Rank rank;
  auto batch = std::make_shared<AttendBatch>();
  batch->tiles = {{.chunk = 0, .row = 0, .tokens = 2, .run = 0, .wanted = false},
                  {.chunk = 1, .row = 2, .tokens = 1, .run = 0, .wanted = true}};
  batch->visible = {4, 5, 0};
  Attend(rank, batch);
  // 4 and 8 keys of pages, 2 heads of a group, 2 groups, 0.125 s each.
  EXPECT_DOUBLE_EQ(rank.Took(), (4 + 8) * 2 * 2 * 0.125);
  EXPECT_EQ(rank.device.TakeCounters().attention_pairs, 9);
  Attend(rank, batch, true);
  EXPECT_DOUBLE_EQ(rank.Took(), 0.0);
  Attend(rank, batch);
  EXPECT_DOUBLE_EQ(rank.Took(), 6.0);
}

TEST(VirtualDevice, SmallTilesPayForTheirKeys) {
  // 4 rows take 0.25 s a key, 1 row takes 0.15625: 0.125 s a key and 0.03125 for each row.
  DeviceFigures figures = RoundFigures();
  figures.large_tile = {4, 4 * 16 / 0.25};
  figures.small_tile = {1, 16 / 0.15625};
  Rank rank(figures);
  auto batch = std::make_shared<AttendBatch>();
  batch->tiles = {{.chunk = 0, .row = 0, .tokens = 2, .run = 0, .wanted = false}};
  batch->visible = {4, 8};
  Attend(rank, batch);
  EXPECT_DOUBLE_EQ(rank.Took(), 2 * (8 * 0.125 + 2 * (4 + 8) * 0.03125));
}

TEST(VirtualDevice, CopiesCostTheirBytes) {
  Rank rank;
  // A page of a layer: 4 tokens * (k, v) * 2 heads * 4 * 2 bytes = 128 bytes.
  rank.device.CopyPages(0, std::make_shared<std::vector<PageId>>(3), nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), 3 * 128 / 256.0);
  EXPECT_EQ(rank.device.KvRowBytes(), 32u);
  rank.device.StoreRows(
      0, std::make_shared<std::vector<KvStore>>(std::vector<KvStore>{{0, 2, 0, 0}, {2, 1, 1, 0}}),
      nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), 3 * 32 / 256.0);
  EXPECT_EQ(rank.device.StateBytes(1), 4u * (4 + 2) * 4);
  rank.device.MergeState({}, nullptr, nullptr, 2);
  EXPECT_DOUBLE_EQ(rank.Took(), 2 * 96 / 256.0);
}

TEST(VirtualDevice, ReplicatedTokensCostASliceOfEachMatrix) {
  Rank rank;
  auto batch = std::make_shared<Device::TokenBatch>();
  batch->ranks = 2;
  batch->token = {1, 2};
  batch->position = {7, 7};
  batch->visible = {3, 4};
  batch->run = {0, 0};
  rank.device.BeginTokens(batch);
  rank.Took();
  rank.device.TokenQkv(0, nullptr);
  // Half of 256 weights: 64 bytes, and 2 * 2 * 128 operations.
  EXPECT_DOUBLE_EQ(rank.Took(), 64 / 16.0 + 512 / 256.0);
  rank.device.TokenAttend(0, nullptr, nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), (4 + 4) * 2 * 2 * 0.125 + 2 * 96 / 256.0);
  EXPECT_EQ(rank.device.TakeCounters().attention_pairs, 7);
  rank.device.TokenOutput(0, nullptr, nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), 2 * 2 * 96 / 256.0 + 32 / 16.0 + 256 / 256.0);
  rank.device.TokenFfn(0, nullptr, nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), 96 / 16.0 + 768 / 256.0);
  rank.device.EndTokenLayer(0, nullptr);
  EXPECT_DOUBLE_EQ(rank.Took(), 2 * 2 * 8 * 4 / 256.0);
  EXPECT_EQ(rank.device.TokenBytes(Device::TokenStage::kQkv, 2, 3),
            sizeof(RoundHeader) + 2 * 11 * 4);
}

TEST(VirtualDevice, MemoryIsAddressSpaceThatIsAccountedFor) {
  Rank rank;
  {
    DeviceBuffer large = rank.device.Allocate(size_t{1} << 40, "ring").value();
    DeviceBuffer small = rank.device.Allocate(10, "x").value();
    EXPECT_NE(large.data(), nullptr);
    EXPECT_EQ(large.size(), size_t{1} << 40);
  }
  const std::vector<Device::MemoryUse> memory = rank.device.Memory();
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].what, "ring");
  EXPECT_EQ(memory[0].bytes, 0u);
  EXPECT_EQ(memory[0].peak_bytes, size_t{1} << 40);
}

TEST(VirtualDevice, AFailedStreamSkipsUntilItRecovers) {
  Rank rank;
  rank.device.stream().Fail(absl::DataLossError("stale"));
  RunLayers(rank, Rows({}), {.project = 0});
  EXPECT_DOUBLE_EQ(rank.device.stream().now_s(), 0.0);
  EXPECT_EQ(rank.device.stream().Synchronize({}).code(), absl::StatusCode::kDataLoss);
  rank.device.Recover();
  RunLayers(rank, Rows({}), {.project = 0});
  EXPECT_GT(rank.device.stream().now_s(), 0.0);
}

}  // namespace
}  // namespace ringfill
