// Single operations of the CPU device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/engine/compute/cpu/raw_ring.h"
#include "tests/testing/late_device.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

constexpr int kRows = 50;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One rank with two sequences of `kRows` tokens, whose first halves of layer 0 have run; on the
// stream of the parameter (0: inline, otherwise a late one's seed).
class DeviceOperationsTest : public testing::TestWithParam<int> {
 protected:
  void Open(DType type = DType::kF32, int threads = 2) {
    RawRingOptions options;
    options.threads = threads;
    options.tile_rows = 40;  // 32 rows, then 34 of which 18 are the first chunk's, ...
    options.model.dtype = type;
    options.model.kv_dtype = type;
    options.make_stream = GetParam() == 0 ? HostStreamFactory(MakeInlineStream)
                                          : LateStreams(static_cast<uint64_t>(GetParam()));
    ring_ = std::make_unique<RawRing>(LoadModelOrDie(WriteTinyModel({})), options);
    device_ = &ring_->device(0);
    const ModelConfig& config = ring_->model().config();
    group_ = ring_->model().group();
    for (RawSequence& sequence : sequences_) {
      sequence = ring_->NewSequence();
      for (int t = 0; t < kRows; ++t) sequence.tokens.push_back(static_cast<TokenId>(7 * t % 300));
      for (int i = 0; i * options.model.page_tokens < kRows; ++i) {
        sequence.pages[0].push_back(next_page_++);
      }
    }
    const std::vector<TokenId> all(kRows, 0);
    chunks_ = {{&sequences_[0], all}, {&sequences_[1], all}};
    batch_ = ring_->HomeBatch(0, chunks_);
    sight_ = ring_->Sight(*batch_, 0, chunks_);
    const int64_t rows = batch_->rows();
    x_ = device_->Allocate(static_cast<size_t>(rows * config.width) * sizeof(float), "x").value();
    angles_ = device_->Allocate(device_->AngleBytes(rows), "angles").value();
    q_ = device_->Allocate(device_->QueryBytes(rows), "q").value();
    state_ = device_->Allocate(device_->StateBytes(rows), "state").value();
    outbox_ =
        device_->Allocate(device_->KvRowBytes() * static_cast<size_t>(rows), "outbox").value();
    buffers_ = {x_.data(), angles_.data(), q_.data(), outbox_.data()};
    device_->EmbedRows(batch_, buffers_);
  }
  void OpenAndProject(DType type = DType::kF32) {
    Open(type);
    device_->RunLayers({.project = 0, .batch = batch_, .buffers = buffers_});
  }

  Device::AttendArgs AttendAll() {
    return {.label = {.kind = OpKind::kAttend, .layer = 0, .round = 0},
            .batch = sight_,
            .q = q_.data(),
            .state = state_.data(),
            .rows = batch_->rows(),
            .clear = true,
            .flags = flags_};
  }
  absl::Status Sync() { return device_->stream().Synchronize(InTwoMinutes()); }
  std::vector<float> Floats(const DeviceBuffer& buffer) {
    EXPECT_TRUE(Sync().ok());
    std::vector<float> out(buffer.size() / sizeof(float));
    std::memcpy(out.data(), buffer.data(), buffer.size());
    return out;
  }
  std::vector<std::byte> LayerOfPages(int layer, const std::vector<PageId>& pages) {
    const size_t bytes = pages.size() * ring_->model().geometry().LayerBytes();
    const DeviceBuffer shard = device_->Allocate(bytes, "shard").value();
    device_->CopyPages(layer, std::make_shared<const std::vector<PageId>>(pages), shard.data());
    EXPECT_TRUE(Sync().ok());
    return {shard.data(), shard.data() + bytes};
  }
  // The state of one row under one head.
  SoftmaxRow StateOf(const DeviceBuffer& state, int64_t row, int head) {
    const ModelConfig& c = ring_->model().config();
    auto* at = reinterpret_cast<float*>(state.data());
    const int64_t all = batch_->rows() * c.heads;
    const int64_t i = (head / group_ * batch_->rows() + row) * group_ + head % group_;
    return {at + i, at + all + i, at + 2 * all + i * c.head_dim};
  }

  std::unique_ptr<RawRing> ring_;
  Device* device_ = nullptr;
  int group_ = 1;
  PageId next_page_ = 0;
  RawSequence sequences_[2];
  std::vector<RawRing::Chunk> chunks_;
  std::shared_ptr<RowBatch> batch_;
  std::shared_ptr<AttendBatch> sight_;
  DeviceBuffer x_, angles_, q_, state_, outbox_;
  Device::RowBuffers buffers_;
  std::shared_ptr<LayerFlags> flags_ = std::make_shared<LayerFlags>();
};

TEST_P(DeviceOperationsTest, RowsSentHomeGiveTheBitsOfRowsStored) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    next_page_ = 0;
    Open(type);
    // All rows are stored and sent; the outbox fills from behind, tile by tile.
    int64_t slot = batch_->rows();
    for (RowTile& tile : batch_->tiles) {
      slot -= tile.rows;
      tile.first_send = batch_->sends.size();
      batch_->sends.push_back({tile.row, static_cast<int>(tile.rows), slot});
      tile.last_send = batch_->sends.size();
    }
    batch_->send_slots = batch_->rows();
    device_->RunLayers({.project = 0, .batch = batch_, .buffers = buffers_});
    // To other pages, from the slots; every store cut in two.
    std::vector<KvStore> stores;
    std::vector<PageId> from, to;
    for (const RowTile& tile : batch_->tiles) {
      const int64_t first = batch_->sends[tile.first_send].slot;
      for (size_t s = tile.first_store; s < tile.last_store; ++s) {
        const KvStore& store = batch_->stores[s];
        const int half = store.rows / 2;
        const int64_t at = first + store.row - tile.row;
        stores.push_back(
            {at + half, store.rows - half, store.page + 30, store.token_in_page + half});
        stores.push_back({at, half, store.page + 30, store.token_in_page});
      }
    }
    for (const RawSequence& sequence : sequences_) {
      for (PageId page : sequence.pages[0]) {
        from.push_back(page);
        to.push_back(page + 30);
      }
    }
    device_->StoreRows(0, std::make_shared<const std::vector<KvStore>>(stores), outbox_.data());
    const std::vector<std::byte> stored = LayerOfPages(0, from);
    ASSERT_TRUE(
        std::any_of(stored.begin(), stored.end(), [](std::byte b) { return b != std::byte{}; }));
    EXPECT_TRUE(LayerOfPages(0, to) == stored) << DTypeName(type);
    ring_.reset();
  }
}

// The same KV from pages of the pool, from a shard in order, and from a shard through a page list.
TEST_P(DeviceOperationsTest, PoolAndShardGiveEqualBits) {
  OpenAndProject();
  device_->Attend(AttendAll());
  const std::vector<float> want = Floats(state_);
  auto sight = std::make_shared<AttendBatch>(*sight_);
  const size_t layer_bytes = ring_->model().geometry().LayerBytes();
  for (const bool reversed : {false, true}) {
    std::vector<PageId> pages;
    for (size_t s = 0; s < 2; ++s) {
      std::vector<PageId> mine = sequences_[s].pages[0];
      sight->runs[s] = {{}, pages.size() * layer_bytes};
      if (reversed) {
        std::reverse(mine.begin(), mine.end());
        for (size_t i = mine.size(); i-- > 0;)
          sight->runs[s].pages.push_back(static_cast<PageId>(i));
      }
      pages.insert(pages.end(), mine.begin(), mine.end());
    }
    const DeviceBuffer shard = device_->Allocate(pages.size() * layer_bytes, "shard").value();
    device_->CopyPages(0, std::make_shared<const std::vector<PageId>>(pages), shard.data());
    Device::AttendArgs args = AttendAll();
    args.batch = sight;
    args.shard = shard.data();
    device_->Attend(args);
    EXPECT_EQ(Floats(state_), want) << reversed;
  }
  EXPECT_EQ(flags_->nonfinite_chunks, 0u);
}

TEST_P(DeviceOperationsTest, MergedStatesOfTwoPartsEqualTheWhole) {
  OpenAndProject();
  device_->Attend(AttendAll());
  const std::vector<float> want = Floats(state_);
  // Keys of the first page, and those behind it.
  auto first = std::make_shared<AttendBatch>(*sight_);
  auto rest = std::make_shared<AttendBatch>(*sight_);
  for (int64_t& v : first->visible) v = std::min<int64_t>(v, 16);
  for (int64_t& v : rest->visible) v = std::max<int64_t>(v - 16, 0);
  for (KvRun& run : rest->runs) run.pages.erase(run.pages.begin());
  const DeviceBuffer other = device_->Allocate(state_.size(), "state").value();
  Device::AttendArgs args = AttendAll();
  args.batch = first;
  device_->Attend(args);
  args.batch = rest;
  args.state = other.data();
  device_->Attend(args);
  device_->MergeState({.kind = OpKind::kMerge}, other.data(), state_.data(), batch_->rows());
  const std::vector<float> got = Floats(state_);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-5 * (1 + std::abs(want[i]))) << i;
  }
}

TEST_P(DeviceOperationsTest, ClearEmptiesEveryRowAndSkippedTilesStayEmpty) {
  OpenAndProject();
  std::memset(state_.data(), 0xff, state_.size());
  for (QueryTile& tile : sight_->tiles) tile.wanted = tile.row >= 21;
  Device::AttendArgs args = AttendAll();
  args.only_wanted = true;
  args.stopped = 0b10;
  device_->Attend(args);
  ASSERT_TRUE(Sync().ok());
  for (int64_t row = 0; row < batch_->rows(); ++row) {
    const bool runs = batch_->chunk[static_cast<size_t>(row)] == 0 && row >= 21;
    for (int head = 0; head < ring_->model().config().heads; ++head) {
      const SoftmaxRow state = StateOf(state_, row, head);
      EXPECT_EQ(*state.sum != 0, runs) << row;
      EXPECT_FALSE(std::isnan(*state.max) || std::isnan(state.acc[0])) << row;
      EXPECT_EQ(*state.max == -INFINITY, !runs) << row;
    }
  }
}

TEST_P(DeviceOperationsTest, TilesOfStoppedChunksAndUnwantedOnesAreSkipped) {
  OpenAndProject();
  device_->Attend(AttendAll());
  const std::vector<float> before = Floats(x_);
  for (RowTile& tile : batch_->tiles) tile.wanted = tile.row < 32;
  Device::LayersArgs args{.finish = 0,
                          .only_wanted = true,
                          .batch = batch_,
                          .buffers = buffers_,
                          .state = state_.data(),
                          .flags = flags_};
  device_->TakeCounters();
  device_->RunLayers(args);
  const auto width = static_cast<size_t>(ring_->model().config().width);
  std::vector<float> after = Floats(x_);
  EXPECT_FALSE(std::equal(after.begin(), after.begin() + static_cast<ptrdiff_t>(32 * width),
                          before.begin()));
  EXPECT_TRUE(std::equal(after.begin() + static_cast<ptrdiff_t>(32 * width), after.end(),
                         before.begin() + static_cast<ptrdiff_t>(32 * width)));
  EXPECT_EQ(device_->TakeCounters().product_rows, 32);

  device_->RunLayers({.project = 1, .stopped = 0b11, .batch = batch_, .buffers = buffers_});
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(device_->TakeCounters().product_rows, 0);
  device_->AbandonLayers(1);
  // A pass may begin anew.
  device_->RunLayers({.project = 0, .stopped = 0b01, .batch = batch_, .buffers = buffers_});
  ASSERT_TRUE(Sync().ok());
  // Chunk 1 begins in the middle of a tile.
  int64_t rows = 0;
  for (const RowTile& tile : batch_->tiles) rows += (tile.chunks & 0b10) != 0 ? tile.rows : 0;
  EXPECT_GT(rows, kRows);
  EXPECT_EQ(device_->TakeCounters().product_rows, rows);
}

TEST_P(DeviceOperationsTest, CountsRowsAndPairsExactly) {
  OpenAndProject();
  device_->Attend(AttendAll());
  ASSERT_TRUE(Sync().ok());
  const WorkCounters counters = device_->TakeCounters();
  EXPECT_EQ(counters.product_rows, 2 * kRows);
  EXPECT_EQ(counters.attention_pairs, 2 * kRows * (kRows + 1) / 2);
  EXPECT_EQ(counters.merged_states, 2 * kRows);
  EXPECT_EQ(counters.empty_states, 0);
  EXPECT_EQ(device_->TakeCounters().attention_pairs, 0);
}

// A value that is not finite names its chunk and round, and no other.
TEST_P(DeviceOperationsTest, NonFiniteKeysShowInTheAttention) {
  OpenAndProject();
  device_->PoisonPages({sequences_[1].pages[0][2]});
  Device::AttendArgs args = AttendAll();
  args.label.round = 3;
  device_->Attend(args);
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(flags_->nonfinite_chunks, 0b10u);
  EXPECT_EQ(flags_->nonfinite_round, 3);
  // A stopped chunk is nobody's concern.
  flags_ = std::make_shared<LayerFlags>();
  args.flags = flags_;
  args.stopped = 0b10;
  device_->Attend(args);
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(flags_->nonfinite_chunks, 0u);
  EXPECT_EQ(flags_->nonfinite_round, -1);
}

TEST_P(DeviceOperationsTest, NonFiniteProductsShowInTheSecondHalf) {
  OpenAndProject();
  device_->Attend(AttendAll());
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(flags_->nonfinite_chunks, 0u);
  *StateOf(state_, kRows + 3, 1).sum = kNan;
  device_->RunLayers(
      {.finish = 0, .batch = batch_, .buffers = buffers_, .state = state_.data(), .flags = flags_});
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(flags_->nonfinite_chunks, 0b10u);
  EXPECT_EQ(flags_->nonfinite_round, -1);
}

TEST_P(DeviceOperationsTest, HeadersAreCheckedAndTravelOn) {
  Open();
  const DeviceBuffer at = device_->Allocate(sizeof(RoundHeader), "ring").value();
  RoundHeader header;
  header.epoch = 3;
  header.layer = 1;
  header.stop_mask = 0b100;
  device_->WriteHeader(header, at.data());
  RoundHeader expected = header;
  expected.stop_mask = 0;
  device_->CheckHeader(expected, at.data(), flags_);
  ASSERT_TRUE(Sync().ok());
  EXPECT_EQ(flags_->stop_mask, 0b100u);
  expected.round = 1;
  device_->ForwardHeader(expected, at.data());
  device_->CheckHeader(expected, at.data(), flags_);
  ASSERT_TRUE(Sync().ok());
  RoundHeader now;
  std::memcpy(&now, at.data(), sizeof(now));
  EXPECT_EQ(now.stop_mask, 0b100u);

  // Another epoch's buffer fails the stream, and what is queued behind does not run.
  const std::vector<float> before = Floats(x_);
  expected.epoch = 4;
  device_->CheckHeader(expected, at.data(), flags_);
  device_->Attend(AttendAll());
  const EventPtr behind = device_->stream().Record();
  EXPECT_EQ(behind->Await(InTwoMinutes()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Sync().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(device_->TakeCounters().attention_pairs, 0);
  device_->Recover();
  EXPECT_TRUE(device_->stream().status().ok());
  device_->RunLayers({.project = 0, .batch = batch_, .buffers = buffers_});
  EXPECT_TRUE(Sync().ok());
}

TEST_P(DeviceOperationsTest, MemoryIsAccountedByName) {
  Open();
  const auto use = [&](std::string_view what) {
    for (const Device::MemoryUse& entry : device_->Memory()) {
      if (entry.what == what) return entry;
    }
    return Device::MemoryUse{};
  };
  EXPECT_EQ(use("x").bytes, x_.size());
  EXPECT_EQ(use("kv pages").bytes, 61 * ring_->model().geometry().PageBytes());
  EXPECT_GT(use("tile scratch").bytes, 0u);
  {
    const DeviceBuffer a = device_->Allocate(1000, "ring").value(),
                       b = device_->Allocate(500, "ring").value();
    EXPECT_EQ(use("ring").bytes, 1500u);
    DeviceBuffer moved = device_->Allocate(1, "ring").value();
    moved = DeviceBuffer();
  }
  EXPECT_EQ(use("ring").bytes, 0u);
  EXPECT_EQ(use("ring").peak_bytes, 1501u);
  EXPECT_EQ(use("attention scratch").bytes, 0u);
  device_->RunLayers({.project = 0, .batch = batch_, .buffers = buffers_});
  device_->Attend(AttendAll());
  std::vector<float> scores(1);
  device_->ScoreRows(x_.data(), {{0, 5}}, scores.data());
  ASSERT_TRUE(Sync().ok());
  EXPECT_GT(use("attention scratch").bytes, 0u);
  EXPECT_GT(use("product scratch").bytes, 0u);
  EXPECT_GT(use("output head").bytes, 0u);
  EXPECT_EQ(use("score rows").bytes, 0u);
  EXPECT_GT(use("score rows").peak_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Streams, DeviceOperationsTest, testing::Values(0, 1, 2, 3, 4),
                         [](const auto& info) { return "seed" + std::to_string(info.param); });

// Two devices share expanded weights, and the other one does not come.
class SharedWeightsTest : public testing::TestWithParam<int> {
 protected:
  SharedWeightsTest() {
    TinyModelOptions tiny;
    tiny.layers = 4;
    RawRingOptions options;
    options.ranks = 2;
    if (GetParam() != 0) options.make_stream = LateStreams(static_cast<uint64_t>(GetParam()));
    ring_ = std::make_unique<RawRing>(LoadModelOrDie(WriteTinyModel(tiny)), options);
  }

  // Layers 0 to 2 of a pass without rows; layer 2 takes the place of layer 0, which the other rank
  // has to leave.
  absl::Status RunAhead(int rank) {
    Device& device = ring_->device(rank);
    device.RunLayers({.project = 0});
    device.RunLayers({.finish = 0, .project = 1});
    device.RunLayers({.finish = 1, .project = 2});
    return device.stream().Synchronize(InTwoMinutes());
  }

  std::unique_ptr<RawRing> ring_;
};

TEST_P(SharedWeightsTest, WaitsEndAtTheLimit) {
  ring_->device(0).SetWaitLimit(std::chrono::milliseconds(20));
  EXPECT_EQ(RunAhead(0).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(SharedWeightsTest, AbortEndsWaitsUntilTheNextEpoch) {
  absl::Status status;
  std::thread rank([&] { status = RunAhead(0); });
  ring_->device(1).Abort(absl::AbortedError("a peer is gone"));
  rank.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  ring_->device(0).Recover();
  ring_->device(1).Recover();
  // One rank is left.
  ring_->model().StartEpoch(1);
  EXPECT_TRUE(RunAhead(0).ok());
}

INSTANTIATE_TEST_SUITE_P(Streams, SharedWeightsTest, testing::Values(0, 1, 2),
                         [](const auto& info) { return "seed" + std::to_string(info.param); });

}  // namespace
}  // namespace ringfill
