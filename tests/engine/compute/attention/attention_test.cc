#include "engine/compute/attention/attention.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/float_types.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/attention/paged_run.h"

namespace ringfill {
namespace {

// Errors that a kernel may make relative to the reference on the same stored values.
struct Tolerance {
  float out;  // times the values' magnitude
  float lse;  // times 1 + |lse|
};

class AttentionTest : public testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    const std::vector<CpuIsa> have = AvailableCpuIsas();
    if (std::find(have.begin(), have.end(), isa()) == have.end()) {
      GTEST_SKIP() << "this machine has no " << CpuIsaName(isa());
    }
  }

  CpuIsa isa() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  KvBlockShape Shape(int head_dim, int page_tokens) const {
    return {type(), head_dim, page_tokens};
  }

  // Only the bf16 dot instruction rounds probabilities to bf16 and exponentiates roughly.
  Tolerance Limits() const {
    if (isa() == CpuIsa::kAvx512Bf16 && type() == DType::kBF16) return {1e-2f, 1e-3f};
    return {1e-5f, 1e-5f};
  }

  void ExpectClose(TestTile& got, TestTile& want, int dim, const std::string& what,
                   Tolerance limit) {
    std::vector<float> a(dim), b(dim);
    for (int row = 0; row < got.rows(); ++row) {
      const SoftmaxRow got_row = got.state().Row(row, dim);
      const SoftmaxRow want_row = want.state().Row(row, dim);
      const float lse = LogSumExp(want_row);
      if (std::isinf(lse)) {
        ASSERT_EQ(LogSumExp(got_row), lse) << what << " row " << row;
      } else {
        ASSERT_NEAR(LogSumExp(got_row), lse, limit.lse * (1.0f + std::abs(lse)))
            << what << " row " << row;
      }
      NormalizeSoftmax(got_row, a.data(), dim);
      NormalizeSoftmax(want_row, b.data(), dim);
      for (int d = 0; d < dim; ++d) {
        ASSERT_NEAR(a[d], b[d], limit.out * (1.0f + std::abs(b[d])))
            << what << " row " << row << " dim " << d;
      }
    }
  }

  // The kernel against the reference, both starting from the same state.
  void Compare(const KvBlockShape& shape, const RunOptions& options, int group,
               const std::vector<int64_t>& visible, bool fresh, const std::string& what) {
    const PagedRun run(shape, options);
    TestTile got(shape, group, visible, options.seed + 1);
    if (!fresh) got.RandomState(options.seed + 2);
    TestTile want = got;
    got.Run(*MakeAttentionKernel(shape, isa()), run.blocks());
    want.Run(*MakeReferenceAttention(shape), run.blocks());
    ExpectClose(got, want, shape.head_dim, what, Limits());
  }
};

// Visible lengths worth trying with a run of `tokens`.
std::vector<std::vector<int64_t>> VisiblePatterns(int64_t tokens, int page, std::mt19937& rng) {
  std::vector<std::vector<int64_t>> out = {
      {1}, {tokens}, {0, 0, 1}, {0, tokens}, {page - 1, page, page + 1}, {page, page, 2 * page}};
  std::vector<int64_t> causal, random, same(5, tokens - 1);
  for (int64_t t = tokens - 9; t <= tokens; ++t) causal.push_back(t);
  for (int i = 0; i < 7; ++i) random.push_back(rng() % (tokens + 1));
  std::sort(random.begin(), random.end());
  out.insert(out.end(), {causal, random, same});
  return out;
}

TEST_P(AttentionTest, MatchesTheReference) {
  std::mt19937 rng(7);
  for (const int dim : {20, 64, 80, 96, 128}) {
    for (const int page : {16, 64}) {
      for (const int group : {1, 3, 4, 8}) {
        const int64_t tokens = 2 * page + 1 + rng() % 120;
        for (const std::vector<int64_t>& visible : VisiblePatterns(tokens, page, rng)) {
          const uint32_t seed = rng();
          const std::string what =
              "dim " + std::to_string(dim) + " page " + std::to_string(page) + " group " +
              std::to_string(group) + " visible.. " + std::to_string(visible.back()) + " of " +
              std::to_string(visible.size()) + " tokens, seed " + std::to_string(seed);
          const bool indexed = seed % 3 != 0;
          // The run ends where the last token's view ends: what follows it is NaN.
          Compare(Shape(dim, page), {visible.back(), indexed, 1.0f, seed}, group, visible,
                  seed % 2 != 0, what);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(AttentionTest, OtherShapesRunToo) {
  for (const auto& [dim, page] : {std::pair{2, 16}, {32, 48}, {34, 64}, {256, 32}, {112, 128}}) {
    Compare(Shape(dim, page), {301, true, 1.0f, 5}, 2, {0, 17, 200, 301}, true,
            "dim " + std::to_string(dim));
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionTest, HundredsOfPages) {
  Compare(Shape(64, 16), {16 * 301 - 5, true, 1.0f, 1}, 3, {16 * 301 - 5}, true, "decode");
  Compare(Shape(64, 16), {16 * 200, false, 1.0f, 2}, 1, {1, 1023, 1025, 2048, 3200}, false,
          "mixed");
  Compare(Shape(128, 64), {64 * 130 - 31, true, 1.0f, 3}, 1, {64 * 130 - 31}, true, "long");
}

TEST_P(AttentionTest, ManyRows) {
  std::vector<int64_t> visible;
  for (int t = 0; t < 67; ++t) visible.push_back(1 + t);
  Compare(Shape(64, 16), {67, true, 1.0f, 9}, 3, visible, true, "causal tile");
  for (int rows = 1; rows <= 20; ++rows) {
    Compare(Shape(16, 16), {40, true, 1.0f, 9}, rows, {39}, true, std::to_string(rows) + " rows");
  }
}

TEST_P(AttentionTest, SeeingNothingLeavesTheStateAlone) {
  const KvBlockShape shape = Shape(64, 16);
  const auto kernel = MakeAttentionKernel(shape, isa());
  const PagedRun run(shape, {40, true, 1.0f, 3});
  for (const bool fresh : {true, false}) {
    TestTile tile(shape, 3, {0, 0}, 4);
    if (!fresh) tile.RandomState(5);
    const TestTile before = tile;
    tile.Run(*kernel, run.blocks());
    EXPECT_EQ(tile.max(), before.max());
    EXPECT_EQ(tile.sum(), before.sum());
    EXPECT_EQ(tile.acc(), before.acc());
  }
  // Also beside tokens that see keys, in the same group of rows.
  TestTile tile(shape, 2, {0, 40}, 4);
  tile.Run(*kernel, run.blocks());
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ(tile.max()[row], -INFINITY);
    EXPECT_EQ(tile.sum()[row], 0.0f);
    for (int d = 0; d < 64; ++d) EXPECT_EQ(tile.acc()[row * 64 + d], 0.0f);
  }
}

// The run in one call against the same run cut into several, as ring rounds do.
TEST_P(AttentionTest, PassesOverPartsMergeToTheWhole) {
  const int page = 16;
  for (const int dim : {64, 80}) {
    const KvBlockShape shape = Shape(dim, page);
    const auto kernel = MakeAttentionKernel(shape, isa());
    const std::vector<int64_t> visible = {0, 3, 100, 517, 599, 600};
    const PagedRun run(shape, {600, true, 2.0f, 21});
    TestTile whole(shape, 3, visible, 22);
    whole.Run(*kernel, run.blocks());
    for (const int64_t step : {1, 5, 37}) {
      TestTile parts(shape, 3, visible, 22);
      // Back to front: the order of rounds is not the order of positions.
      for (int64_t first = 37 / step * step; first >= 0; first -= step) {
        for (size_t t = 0; t < visible.size(); ++t) {
          parts.visible()[t] = std::clamp<int64_t>(visible[t] - first * page, 0, step * page);
        }
        parts.Run(*kernel, run.blocks(first));
      }
      ExpectClose(parts, whole, dim, "step " + std::to_string(step), Limits());
    }
  }
}

TEST_P(AttentionTest, IndexedAndConsecutivePagesGiveEqualBits) {
  const KvBlockShape shape = Shape(64, 32);
  const auto kernel = MakeAttentionKernel(shape, isa());
  std::vector<uint32_t> identity(20);
  for (uint32_t i = 0; i < identity.size(); ++i) identity[i] = i;
  const PagedRun run(shape, {609, false, 1.0f, 31});
  KvBlocks indexed = run.blocks();
  indexed.page_index = identity.data();
  TestTile a(shape, 3, {5, 300, 609}, 32);
  TestTile b = a;
  a.Run(*kernel, run.blocks());
  b.Run(*kernel, indexed);
  EXPECT_EQ(a.max(), b.max());
  EXPECT_EQ(a.sum(), b.sum());
  EXPECT_EQ(a.acc(), b.acc());
}

// Pages more than 4 GiB from the base, with and without an index: 32-bit offsets would wrap onto
// zeros.
TEST_P(AttentionTest, OffsetsAre64Bit) {
  const KvBlockShape shape = Shape(64, 16);
  const auto kernel = MakeAttentionKernel(shape, isa());
  const PagedRun near(shape, {64, false, 1.0f, 35});
  const KvBlocks from = near.blocks();
  constexpr size_t kStride = size_t{3} << 29;
  constexpr size_t kBytes = 4 * kStride;
  void* map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  KvBlocks far{static_cast<std::byte*>(map), nullptr, kStride, from.k_offset_bytes,
               from.v_offset_bytes};
  for (size_t i = 0; i < 4; ++i) {
    std::memcpy(static_cast<std::byte*>(map) + i * kStride, from.base + i * from.page_stride_bytes,
                from.page_stride_bytes);
  }
  const std::vector<uint32_t> index = {0, 1, 2, 3};
  for (const uint32_t* page_index : {static_cast<const uint32_t*>(nullptr), index.data()}) {
    far.page_index = page_index;
    TestTile want(shape, 3, {64}, 36);
    TestTile got = want;
    want.Run(*kernel, from);
    got.Run(*kernel, far);
    EXPECT_EQ(got.sum(), want.sum());
    EXPECT_EQ(got.acc(), want.acc());
  }
  munmap(map, kBytes);
}

// What strict numerics rest on: a row's bits do not depend on the rows beside it.
TEST_P(AttentionTest, RowsDoNotDependOnTheirNeighbours) {
  for (const int dim : {64, 80}) {
    const KvBlockShape shape = Shape(dim, 16);
    const auto kernel = MakeAttentionKernel(shape, isa());
    const PagedRun run(shape, {1500, true, 1.0f, 41});
    TestTile together(shape, 3, {0, 1, 130, 700, 701, 1100, 1499, 1500}, 42);
    TestTile alone = together;
    together.Run(*kernel, run.blocks());
    for (int t = 0; t < 8; ++t) TestTile::RunTile(*kernel, alone.token_tile(run.blocks(), t));
    EXPECT_EQ(together.max(), alone.max());
    EXPECT_EQ(together.sum(), alone.sum());
    EXPECT_EQ(together.acc(), alone.acc());
  }
}

// What position-ordered attention over several ranks rests on.
TEST_P(AttentionTest, CutsAtMultiplesOf1024GiveEqualBits) {
  const std::vector<std::vector<int64_t>> cuts = {
      {1024}, {2048}, {1024, 2048}, {1024, 2048, 3072}, {3072}};
  for (const int dim : {20, 64, 80, 96, 128}) {
    for (const int page : {16, 64}) {
      const KvBlockShape shape = Shape(dim, page);
      const auto kernel = MakeAttentionKernel(shape, isa());
      const std::vector<int64_t> visible = {5, 1023, 1024, 1025, 2049, 2100, 3071, 3500};
      const PagedRun run(shape, {3500, page != 64, 2.0f, 43});
      for (const int group : {1, 3}) {
        TestTile whole(shape, group, visible, 44);
        whole.RandomState(45);
        const TestTile fresh = whole;
        whole.Run(*kernel, run.blocks());
        for (const std::vector<int64_t>& at : cuts) {
          TestTile parts = fresh;
          int64_t first = 0;
          for (size_t i = 0; i <= at.size(); ++i) {
            const int64_t end = i < at.size() ? at[i] : 1 << 20;
            for (size_t t = 0; t < visible.size(); ++t) {
              parts.visible()[t] = std::clamp<int64_t>(visible[t] - first, 0, end - first);
            }
            parts.Run(*kernel, run.blocks(first / page));
            first = end;
          }
          const std::string what = "dim " + std::to_string(dim) + " page " + std::to_string(page);
          ASSERT_EQ(parts.max(), whole.max()) << what;
          ASSERT_EQ(parts.sum(), whole.sum()) << what;
          ASSERT_EQ(parts.acc(), whole.acc()) << what;
        }
      }
    }
  }
}

// Also across the sizes at which a kernel changes its ways.
TEST_P(AttentionTest, RowsDoNotDependOnTheSizeOfTheirTile) {
  for (const int dim : {64, 80, 128}) {
    const KvBlockShape shape = Shape(dim, 64);
    const auto kernel = MakeAttentionKernel(shape, isa());
    const PagedRun run(shape, {1400, true, 1.0f, 46});
    std::vector<int64_t> visible;
    for (int t = 0; t < 64; ++t) visible.push_back(1300 + t);
    TestTile together(shape, 3, visible, 47);
    const TestTile fresh = together;
    together.Run(*kernel, run.blocks());
    for (const int size : {1, 2, 4, 5, 7, 63}) {
      TestTile parts = fresh;
      for (int t = 0; t < 64; t += size) {
        TestTile::RunTile(*kernel, parts.tokens_tile(run.blocks(), t, std::min(size, 64 - t)));
      }
      ASSERT_EQ(parts.max(), together.max()) << size;
      ASSERT_EQ(parts.sum(), together.sum()) << size;
      ASSERT_EQ(parts.acc(), together.acc()) << size;
    }
  }
}

// A lower bound at every residue of a slice, a page and a pass. What lies before it is NaN, keys as
// well as values.
TEST_P(AttentionTest, TilesSeeNothingBeforeTheirBegin) {
  for (const auto& [dim, page] : {std::pair{64, 16}, {80, 64}, {20, 16}}) {
    const KvBlockShape shape = Shape(dim, page);
    const auto kernel = MakeAttentionKernel(shape, isa());
    for (int64_t begin = 1; begin < 1400; begin += begin < 70 ? 1 : 37) {
      const std::vector<int64_t> visible = {begin,      begin + 1,  begin + 2,   begin + 2,
                                            begin + 15, begin + 64, begin + 1100};
      PagedRun run(shape, {begin + 1100, true, 1.0f, static_cast<uint32_t>(begin)});
      for (const int group : {1, 3}) {
        TestTile got(shape, group, visible, 81);
        if (begin % 2 != 0) got.RandomState(82);
        got.SetBegin(begin);
        TestTile want = got;
        want.Run(*MakeReferenceAttention(shape), run.blocks());
        for (int64_t t = std::max<int64_t>(0, begin - 16); t < begin; ++t) {
          run.Poison(t, true);
          run.Poison(t, false);
        }
        TestTile alone = got;
        got.Run(*kernel, run.blocks());
        ExpectClose(got, want, dim, "begin " + std::to_string(begin), Limits());
        if (HasFatalFailure()) return;
        for (size_t t = 0; t < visible.size(); ++t) {
          TestTile::RunTile(*kernel, alone.token_tile(run.blocks(), static_cast<int>(t)));
        }
        ASSERT_EQ(alone.sum(), got.sum()) << begin;
        ASSERT_EQ(alone.acc(), got.acc()) << begin;
      }
    }
  }
}

TEST_P(AttentionTest, CutsAtMultiplesOf1024GiveEqualBitsBehindABegin) {
  const int page = 16;
  for (const int dim : {64, 80, 128}) {
    const KvBlockShape shape = Shape(dim, page);
    const auto kernel = MakeAttentionKernel(shape, isa());
    const PagedRun run(shape, {3500, true, 2.0f, 83});
    for (const int64_t begin : {1, 255, 256, 1000, 1023, 1024, 1025, 2047, 2100}) {
      const std::vector<int64_t> visible = {begin, begin + 1, std::max<int64_t>(begin, 2049), 3500};
      TestTile whole(shape, 3, visible, 84);
      TestTile parts = whole;
      whole.SetBegin(begin);
      whole.Run(*kernel, run.blocks());
      for (int64_t first = 0; first < 3500; first += 1024) {
        for (size_t t = 0; t < visible.size(); ++t) {
          parts.visible()[t] = std::clamp<int64_t>(visible[t] - first, 0, 1024);
        }
        parts.SetBegin(std::clamp<int64_t>(begin - first, 0, 1024));
        parts.Run(*kernel, run.blocks(first / page));
      }
      ASSERT_EQ(parts.max(), whole.max()) << begin;
      ASSERT_EQ(parts.sum(), whole.sum()) << begin;
      ASSERT_EQ(parts.acc(), whole.acc()) << begin;
    }
  }
}

TEST_P(AttentionTest, HugeScoresStayExactAndFinite) {
  const KvBlockShape shape = Shape(64, 16);
  // Scores near +-1e4: a float32 score is then good to about 1e-3 in base-2 units.
  const PagedRun run(shape, {200, true, 7000.0f, 51});
  TestTile got(shape, 3, {1, 77, 200}, 52);
  TestTile want = got;
  got.Run(*MakeAttentionKernel(shape, isa()), run.blocks());
  want.Run(*MakeReferenceAttention(shape), run.blocks());
  const float top = *std::max_element(want.max().begin(), want.max().end());
  ASSERT_GT(top, 1e4f);
  for (int row = 0; row < got.rows(); ++row) {
    ASSERT_TRUE(std::isfinite(got.max()[row]) && std::isfinite(got.sum()[row])) << row;
  }
  ExpectClose(got, want, 64, "huge", {2e-2f, 1e-5f});
}

// The opposite garbage: a value that a row does see must not vanish.
TEST_P(AttentionTest, NanInASeenTokenShowsInItsRowsAlone) {
  for (const bool key : {true, false}) {
    for (const int64_t at : {0, 37, 99}) {
      const KvBlockShape shape = Shape(64, 16);
      PagedRun run(shape, {100, true, 1.0f, 61});
      run.Poison(at, key);
      TestTile tile(shape, 1, {at, at + 1, 100}, 62);
      if (at == 0) tile.visible() = {1, 1, 100};
      // Alone: beside rows that do see the token, a key masked out may not leak into this one
      // either.
      TestTile::RunTile(*MakeAttentionKernel(shape, isa()), tile.token_tile(run.blocks(), 0));
      TestTile::RunTile(*MakeAttentionKernel(shape, isa()), tile.token_tile(run.blocks(), 1));
      TestTile::RunTile(*MakeAttentionKernel(shape, isa()), tile.token_tile(run.blocks(), 2));
      std::vector<float> out(64);
      for (int row = 0; row < 3; ++row) {
        NormalizeSoftmax(tile.state().Row(row, 64), out.data(), 64);
        const bool sees = tile.visible()[row] > at;
        EXPECT_EQ(std::isnan(out[3]), sees) << "token " << at << " key " << key << " row " << row;
      }
    }
  }
}

TEST_P(AttentionTest, AllKeysNanIsNotAnEmptyRow) {
  const KvBlockShape shape = Shape(64, 16);
  PagedRun run(shape, {3, true, 1.0f, 71});
  for (int t = 0; t < 3; ++t) run.Poison(t, true);
  TestTile tile(shape, 1, {3}, 72);
  tile.Run(*MakeAttentionKernel(shape, isa()), run.blocks());
  EXPECT_TRUE(std::isnan(tile.sum()[0]));
}

TEST_P(AttentionTest, ScratchGrowsWithRowsAlone) {
  const auto kernel = MakeAttentionKernel(Shape(64, 64), isa());
  EXPECT_LE(kernel->ScratchBytes(1), kernel->ScratchBytes(192));
  EXPECT_LE(kernel->ScratchBytes(192), size_t{1} << 20);
  EXPECT_FALSE(kernel->name().empty());
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest,
                         testing::Combine(testing::Values(CpuIsa::kBaseline, CpuIsa::kAvx2,
                                                          CpuIsa::kAvx512, CpuIsa::kAvx512Bf16),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return std::string(CpuIsaName(std::get<0>(info.param))) + "_" +
                                  std::string(DTypeName(std::get<1>(info.param)));
                         });

TEST(AttentionWork, CountsOnlyPagesThatATokenSees) {
  const std::vector<int64_t> visible = {0, 1, 64, 65, 1000};
  AttentionTile tile{};
  tile.tokens = 5;
  tile.group = 3;
  tile.visible = visible.data();
  EXPECT_EQ(AttentionWork(tile, 64), 3 * 64 * (0 + 1 + 1 + 2 + 16));
  tile.tokens = 1;
  EXPECT_EQ(AttentionWork(tile, 64), 0);
}

TEST(AttentionWork, CountsNoPagesBeforeTheBegin) {
  const std::vector<int64_t> visible = {130, 131, 192, 1000};
  AttentionTile tile{};
  tile.tokens = 4;
  tile.group = 3;
  tile.visible = visible.data();
  tile.begin = 130;
  EXPECT_EQ(AttentionWork(tile, 64), 3 * 64 * (0 + 1 + 1 + 14));
}

// Over whole pages a causal prompt costs half of the square, not the square.
TEST(AttentionWork, CausalPromptCostsHalf) {
  std::vector<int64_t> visible;
  for (int64_t t = 1; t <= 4096; ++t) visible.push_back(t);
  AttentionTile tile{};
  tile.tokens = 4096;
  tile.group = 1;
  tile.visible = visible.data();
  EXPECT_EQ(AttentionWork(tile, 64), int64_t{64} * 64 * (64 * 65 / 2));
}

TEST(PackQueries, ScalesForBaseTwoScores) {
  const std::vector<float> q = {1.0f, -2.0f, 0.0f, 3.5f};
  const double scale = std::log2(std::exp(1.0)) / std::sqrt(4.0);
  float f32[4];
  Bf16 bf16[4];
  PackQueries(DType::kF32, 4, q.data(), 4, f32);
  PackQueries(DType::kBF16, 4, q.data(), 4, bf16);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(f32[i], q[i] * scale);
    EXPECT_EQ(bf16[i].bits, ToBf16(f32[i]).bits);
  }
}

// The whole path in natural units: one query against hand-computed softmax.
TEST(ReferenceAttention, IsSoftmaxOfScaledDotProducts) {
  const KvBlockShape shape{DType::kF32, 4, 16};
  std::vector<std::byte> page(2 * shape.BlockBytes());
  const std::vector<float> k = {1, 0, 0, 0, 0, 2, 0, 0};
  const std::vector<float> v = {1, 2, 3, 4, -1, -2, -3, -4};
  StoreKv(shape, 0, 2, k.data(), v.data(), 4, page.data(), page.data() + shape.BlockBytes());
  const std::vector<float> q = {3, 1, 9, 9};
  std::vector<float> packed(4);
  PackQueries(DType::kF32, 4, q.data(), 4, packed.data());
  float max, sum, acc[4], out[4];
  const SoftmaxRows state{&max, &sum, acc};
  ClearSoftmax(state, 1, 4);
  const int64_t visible = 2;
  const KvBlocks kv{page.data(), nullptr, page.size(), 0, shape.BlockBytes()};
  MakeReferenceAttention(shape)->Run({packed.data(), 1, 1, kv, &visible, state}, nullptr);
  const double e0 = std::exp(3.0 / 2), e1 = std::exp(2.0 / 2);
  EXPECT_NEAR(LogSumExp(state.Row(0, 4)), std::log(e0 + e1), 1e-6);
  NormalizeSoftmax(state.Row(0, 4), out, 4);
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(out[d], (d + 1) * (e0 - e1) / (e0 + e1), 1e-6);
}

}  // namespace
}  // namespace ringfill
