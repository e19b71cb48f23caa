#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/gpu_kv.h"

namespace ringfill::gpu {
namespace {

// Spans of consecutive tokens of one run.
std::vector<TokenSpan> SpansOf(const GpuQueryOptions& options) {
  std::vector<TokenSpan> out;
  for (size_t t = 0; t < options.run.size(); ++t) {
    if (t == 0 || options.run[t] != options.run[t - 1]) {
      out.push_back({.token = static_cast<int64_t>(t),
                     .tokens = 0,
                     .run = options.run[t],
                     .bit = options.run[t],
                     .visible = 0});
    }
    ++out.back().tokens;
    out.back().visible = options.visible[t];
  }
  return out;
}

HostStates RunPrefill(const GpuKv& kv, const GpuQueries& queries, uint64_t* nonfinite = nullptr) {
  const DeviceStates states(queries.start());
  const DeviceArray<PrefillWork> work(
      PlanPrefill(SpansOf(queries.options()), queries.options().group));
  const DeviceArray<unsigned long long> mask(std::vector<unsigned long long>{0});
  EXPECT_EQ(AttendPrefill({.attention = queries.Args(states.arrays()),
                           .work = work.data(),
                           .works = static_cast<int>(work.size()),
                           .nonfinite = mask.data()},
                          nullptr),
            0);
  HostStates out = queries.start();
  states.Read(out);
  const uint64_t bits = mask.Read()[0];
  if (nonfinite != nullptr) {
    *nonfinite = bits;
  } else {
    EXPECT_EQ(bits, 0u);
  }
  (void)kv;
  return out;
}

void Compare(const GpuKvOptions& kv_options, const GpuQueryOptions& options,
             const std::string& what) {
  const GpuKv kv(kv_options);
  const GpuQueries queries(kv, options);
  HostStates got = RunPrefill(kv, queries);
  HostStates want = queries.Reference();
  ExpectStatesNear(kv_options.type, got, want, what);
}

// Every length worth trying, ascending, around tiles of 32 and 64 keys.
std::vector<int64_t> EdgeLengths() {
  return {0, 0, 1, 2, 31, 32, 33, 61, 63, 64, 65, 97, 127, 128, 129, 131};
}

using Case = std::tuple<Element, int, int>;
class PrefillTest : public testing::TestWithParam<Case> {
 protected:
  Element type() const { return std::get<0>(GetParam()); }
  int head_dim() const { return std::get<1>(GetParam()); }
  int group() const { return std::get<2>(GetParam()); }
};

TEST_P(PrefillTest, MatchesTheReference) {
  uint32_t seed = 100u * static_cast<uint32_t>(head_dim() + group());
  for (const int page_tokens : {16, 64, 48}) {
    ++seed;
    const std::vector<int64_t> visible = EdgeLengths();
    // The run ends where the last token's view ends: what follows it is NaN.
    Compare({.type = type(),
             .head_dim = head_dim(),
             .kv_heads = page_tokens == 16 ? 2 : 1,
             .page_tokens = page_tokens,
             .run_tokens = {visible.back()},
             .indexed = page_tokens != 64,
             .seed = seed},
            {.group = group(),
             .run = std::vector<int>(visible.size(), 0),
             .visible = visible,
             .fresh = page_tokens == 48,
             .seed = seed},
            "page " + std::to_string(page_tokens));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillTest,
                         testing::Combine(testing::Values(Element::kBF16, Element::kF16),
                                          testing::Values(64, 80, 96, 128, 256),
                                          testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& info) {
                           return std::string(ElementName(std::get<0>(info.param))) + "_dim" +
                                  std::to_string(std::get<1>(info.param)) + "_group" +
                                  std::to_string(std::get<2>(info.param));
                         });

// A batch of stripes of several prompts, each with its own run, and rows that no item covers.
TEST(Prefill, StripesOfSeveralRuns) {
  GpuQueryOptions options{.group = 3, .run = {}, .visible = {}, .begin = {}, .fresh = true};
  const std::vector<std::vector<int64_t>> visible = {{0, 0, 0}, {}, {}, {200}};
  std::vector<int64_t> lengths = {1, 67, 70, 200};
  for (int run = 0; run < 4; ++run) {
    std::vector<int64_t> of = visible[static_cast<size_t>(run)];
    if (run == 1) {
      for (int64_t t = 1; t <= 67; ++t) of.push_back(t);
    }
    if (run == 2) of.assign(30, 70);
    options.run.insert(options.run.end(), of.size(), run);
    options.visible.insert(options.visible.end(), of.begin(), of.end());
  }
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    options.seed = seed;
    Compare({.type = Element::kBF16,
             .head_dim = 64,
             .kv_heads = 2,
             .page_tokens = 32,
             .run_tokens = lengths,
             .seed = seed},
            options, "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
  }
}

TEST(Prefill, FirstVisibleTokens) {
  const GpuQueryOptions options{.group = 2,
                                .run = std::vector<int>(8, 0),
                                .visible = {1, 64, 65, 130, 150, 190, 191, 191},
                                .begin = {0, 0, 1, 63, 64, 64, 129, 191},
                                .fresh = false};
  for (const int dim : {64, 256}) {
    Compare({.type = Element::kBF16,
             .head_dim = dim,
             .kv_heads = 1,
             .page_tokens = 16,
             .run_tokens = {191}},
            options, "dim " + std::to_string(dim));
  }
  // The first token alone sees the first tile.
  GpuQueryOptions alone = options;
  alone.begin = {0, 64, 64, 64, 64, 64, 129, 191};
  Compare({.type = Element::kBF16, .head_dim = 64, .page_tokens = 16, .run_tokens = {191}}, alone,
          "alone");
  // All of the item's rows begin late: the tiles before are not even read.
  GpuQueryOptions late = options;
  late.begin.assign(8, 150);
  late.visible.assign(8, 191);
  Compare({.type = Element::kBF16, .head_dim = 64, .page_tokens = 16, .run_tokens = {191}}, late,
          "late");
}

// Scores near +-1e4 in base-2 units stay finite and exact to their own rounding.
TEST(Prefill, HugeScores) {
  const GpuKv kv({.type = Element::kBF16,
                  .head_dim = 64,
                  .page_tokens = 16,
                  .run_tokens = {150},
                  .k_scale = 3000.0f});
  const GpuQueries queries(kv, {.group = 2, .run = {0, 0, 0}, .visible = {1, 77, 150}});
  HostStates got = RunPrefill(kv, queries);
  HostStates want = queries.Reference();
  ASSERT_GT(*std::max_element(want.max.begin(), want.max.end()), 1e4f);
  ExpectStatesNear(Element::kBF16, got, want, "huge");
}

TEST(Prefill, SeeingNothingKeepsTheState) {
  for (const int64_t tokens : {0, 40}) {
    const GpuKv kv(
        {.type = Element::kF16, .head_dim = 80, .page_tokens = 16, .run_tokens = {tokens}});
    const GpuQueries queries(kv,
                             {.group = 3, .run = {0, 0}, .visible = {0, tokens}, .fresh = false});
    const HostStates got = RunPrefill(kv, queries);
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(got.max[row], queries.start().max[row]);
      EXPECT_EQ(got.sum[row], queries.start().sum[row]);
      EXPECT_EQ(got.acc[row * 80 + 7], queries.start().acc[row * 80 + 7]);
    }
  }
}

// In order and cut at multiples of kPrefillKeys, rounds give the bits of one call.
TEST(Prefill, RoundsInOrderGiveEqualBits) {
  for (const int dim : {96, 256}) {
    const GpuKv kv({.type = Element::kBF16,
                    .head_dim = dim,
                    .page_tokens = 64,
                    .run_tokens = {300},
                    .k_scale = 2.0f});
    GpuQueryOptions options{
        .group = 2, .run = {0, 0, 0}, .visible = {65, 128, 300}, .fresh = false};
    const GpuQueries whole(kv, options);
    const HostStates want = RunPrefill(kv, whole);
    const DeviceStates states(whole.start());
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 128}, {128, 192}, {192, 300}}) {
      // The part's own run: pages from `first` on.
      const DeviceArray<KvRunView> run(std::vector<KvRunView>{{first / 64, 0}});
      std::vector<int64_t> visible;
      for (const int64_t v : options.visible) {
        visible.push_back(std::clamp<int64_t>(v - first, 0, end - first));
      }
      const DeviceArray<int64_t> device_visible(visible);
      AttentionArgs args = whole.Args(states.arrays());
      args.runs = run.data();
      args.visible = device_visible.data();
      const DeviceArray<PrefillWork> work(PlanPrefill({{0, 3, 0, 0, visible.back()}}, 2));
      ASSERT_EQ(AttendPrefill({args, work.data(), static_cast<int>(work.size()), nullptr}, nullptr),
                0);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    HostStates got = whole.start();
    states.Read(got);
    EXPECT_EQ(got.max, want.max);
    EXPECT_EQ(got.sum, want.sum);
    EXPECT_EQ(got.acc, want.acc);
  }
}

// A row's bits do not depend on the rows beside it.
TEST(Prefill, RowsDoNotDependOnTheirTile) {
  const GpuKv kv({.type = Element::kBF16, .head_dim = 64, .page_tokens = 16, .run_tokens = {90}});
  GpuQueryOptions options{.group = 2, .run = std::vector<int>(40, 0), .visible = {}};
  for (int64_t t = 0; t < 40; ++t) options.visible.push_back(51 + t);
  const GpuQueries queries(kv, options);
  const HostStates want = RunPrefill(kv, queries);
  const DeviceStates states(queries.start());
  std::vector<PrefillWork> work;
  for (int64_t row = 0; row < 80; row += 7) {
    work.push_back({row, static_cast<int32_t>(std::min<int64_t>(7, 80 - row)), 0, 0});
  }
  work.push_back({0, 0, 0, 0});
  const DeviceArray<PrefillWork> device_work(work);
  ASSERT_EQ(AttendPrefill({queries.Args(states.arrays()), device_work.data(),
                           static_cast<int>(work.size()), nullptr},
                          nullptr),
            0);
  HostStates got = queries.start();
  states.Read(got);
  EXPECT_EQ(got.max, want.max);
  EXPECT_EQ(got.sum, want.sum);
  EXPECT_EQ(got.acc, want.acc);
}

// A value that is not finite shows in the rows that see it, and in the mask.
TEST(Prefill, NotFiniteIsNoted) {
  GpuKv kv({.type = Element::kBF16, .head_dim = 64, .page_tokens = 16, .run_tokens = {20, 40}});
  // Run 1 is said to be longer than what was stored: NaN from token 40 on.
  const GpuQueries queries(kv, {.group = 1, .run = {0, 1, 1}, .visible = {20, 40, 41}});
  uint64_t mask = 0;
  const HostStates got = [&] {
    const DeviceStates states(queries.start());
    const DeviceArray<PrefillWork> work(
        std::vector<PrefillWork>{{0, 1, 0, 3}, {1, 1, 1, 40}, {2, 1, 1, 41}});
    const DeviceArray<unsigned long long> bits(std::vector<unsigned long long>{1});
    EXPECT_EQ(AttendPrefill({queries.Args(states.arrays()), work.data(), 3, bits.data()}, nullptr),
              0);
    HostStates out = queries.start();
    states.Read(out);
    mask = bits.Read()[0];
    return out;
  }();
  EXPECT_EQ(mask, 1u | uint64_t{1} << 41);
  EXPECT_TRUE(std::isfinite(got.sum[0]) && std::isfinite(got.sum[1]));
  EXPECT_TRUE(std::isnan(got.sum[2]));
}

// With and without a table.
TEST(Prefill, OffsetsAre64Bit) {
  constexpr int kDim = 64, kPage = 16, kPages = FarPages::kPages;
  const GpuKv near({.type = Element::kBF16,
                    .head_dim = kDim,
                    .page_tokens = kPage,
                    .run_tokens = {kPages * kPage},
                    .indexed = false});
  FarPages far;
  near.CopyTo(far);
  const GpuQueries queries(near, {.group = 2, .run = {0, 0}, .visible = {33, kPages * kPage}});
  const HostStates want = RunPrefill(near, queries);
  const DeviceArray<uint32_t> table(std::vector<uint32_t>{0, 1, 2, 3});
  for (const bool indexed : {false, true}) {
    const DeviceStates states(queries.start());
    AttentionArgs args = queries.Args(states.arrays());
    args.kv.base = far.base();
    args.kv.page_stride = FarPages::kStride;
    args.page_table = table.data();
    const DeviceArray<KvRunView> run(
        std::vector<KvRunView>{{indexed ? 0 : KvRunView::kConsecutive, 0}});
    args.runs = run.data();
    const DeviceArray<PrefillWork> work(PlanPrefill({{0, 2, 0, 0, kPages * kPage}}, 2));
    ASSERT_EQ(AttendPrefill({args, work.data(), static_cast<int>(work.size()), nullptr}, nullptr),
              0);
    HostStates got = queries.start();
    states.Read(got);
    EXPECT_EQ(got.max, want.max);
    EXPECT_EQ(got.acc, want.acc);
  }
}

TEST(Prefill, OtherShapesAreRefused) {
  PrefillArgs args{};
  args.works = 1;
  args.attention.kv_heads = 1;
  args.attention.type = Element::kBF16;
  args.attention.head_dim = 72;
  EXPECT_NE(AttendPrefill(args, nullptr), 0);
  args.attention.type = Element::kF32;
  args.attention.head_dim = 64;
  EXPECT_NE(AttendPrefill(args, nullptr), 0);
  args.works = 0;
  EXPECT_EQ(AttendPrefill(args, nullptr), 0);
}

}  // namespace
}  // namespace ringfill::gpu
