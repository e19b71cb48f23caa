#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/gpu_kv.h"

namespace ringfill::gpu {
namespace {

HostStates RunDecode(const GpuQueries& queries, const DecodePlan& plan, int kv_heads, int dim,
                     int unused = 0, const std::function<void(AttentionArgs&)>& change = {}) {
  const DeviceStates states(queries.start());
  AttentionArgs attention = queries.Args(states.arrays());
  if (change) change(attention);
  const DeviceStates parts(static_cast<size_t>(plan.parts * kv_heads * kDecodeRows), dim);
  std::vector<DecodeWork> work = plan.work;
  std::vector<MergeWork> merge = plan.merge;
  // As a captured graph has: items that this step does not need.
  work.resize(work.size() + static_cast<size_t>(unused));
  merge.resize(merge.size() + static_cast<size_t>(unused));
  const DeviceArray<DecodeWork> device_work(work);
  const DeviceArray<MergeWork> device_merge(merge);
  EXPECT_EQ(AttendDecode({.attention = attention,
                          .work = device_work.data(),
                          .works = static_cast<int>(work.size()),
                          .parts = parts.arrays(),
                          .merge = device_merge.data(),
                          .merges = static_cast<int>(merge.size())},
                         nullptr),
            0);
  HostStates out = queries.start();
  states.Read(out);
  return out;
}

using Case = std::tuple<Element, int, int>;
class DecodeTest : public testing::TestWithParam<Case> {};

// One token of every edge length, each of its own run, whole and split.
TEST_P(DecodeTest, MatchesTheReference) {
  const auto [type, head_dim, group] = GetParam();
  const std::vector<int64_t> visible = {0, 1, 15, 16, 17, 63, 64, 65, 523};
  std::vector<int> runs;
  for (size_t i = 0; i < visible.size(); ++i) runs.push_back(static_cast<int>(i));
  for (const int page_tokens : {16, 64}) {
    const GpuKvOptions kv_options{.type = type,
                                  .head_dim = head_dim,
                                  .kv_heads = 2,
                                  .page_tokens = page_tokens,
                                  .run_tokens = visible,
                                  .indexed = page_tokens == 16,
                                  .seed = static_cast<uint32_t>(head_dim + group)};
    const GpuKv kv(kv_options);
    const GpuQueries queries(kv, {.group = group,
                                  .run = runs,
                                  .visible = visible,
                                  .fresh = page_tokens == 16,
                                  .seed = static_cast<uint32_t>(page_tokens)});
    HostStates want = queries.Reference();
    std::vector<TokenSpan> spans;
    for (size_t i = 0; i < visible.size(); ++i) {
      spans.push_back({static_cast<int64_t>(i), 1, runs[i], 0, visible[i]});
    }
    for (const int blocks : {1, 200}) {
      if (blocks == 1 && page_tokens == 64) continue;
      const DecodePlan plan = PlanDecode(spans, {.group = group, .kv_heads = 2, .blocks = blocks});
      EXPECT_EQ(plan.merge.empty(), blocks == 1);
      HostStates got = RunDecode(queries, plan, 2, head_dim, 3);
      ExpectStatesNear(type, got, want,
                       "page " + std::to_string(page_tokens) + " blocks " + std::to_string(blocks));
      if (HasFatalFailure()) return;
    }
  }
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return std::string(ElementName(std::get<0>(info.param))) + "_dim" +
         std::to_string(std::get<1>(info.param)) + "_group" +
         std::to_string(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Bf16, DecodeTest,
                         testing::Combine(testing::Values(Element::kBF16),
                                          testing::Values(64, 80, 96, 128, 256),
                                          testing::Values(1, 2, 3, 4, 8)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(F16, DecodeTest,
                         testing::Combine(testing::Values(Element::kF16),
                                          testing::Values(64, 80, 96, 128, 256),
                                          testing::Values(2)),
                         CaseName);

// Several tokens of one run, more query heads than a work item has rows, first visible tokens.
TEST(Decode, ChunksAndWideGroups) {
  for (const int group : {1, 5, 20}) {
    const GpuKv kv({.type = Element::kBF16,
                    .head_dim = 64,
                    .kv_heads = 1,
                    .page_tokens = 32,
                    .run_tokens = {530}});
    GpuQueryOptions options{.group = group,
                            .run = std::vector<int>(9, 0),
                            .visible = {0, 1, 63, 64, 300, 301, 512, 529, 530},
                            .begin = {0, 0, 5, 64, 100, 250, 250, 300, 529},
                            .fresh = false};
    for (const bool from_start : {true, false}) {
      if (from_start) options.begin.clear();
      const GpuQueries queries(kv, options);
      HostStates want = queries.Reference();
      for (const int blocks : {1, 100}) {
        const DecodePlan plan =
            PlanDecode({{0, 9, 0, 0, 530}}, {.group = group, .kv_heads = 1, .blocks = blocks});
        HostStates got = RunDecode(queries, plan, 1, 64);
        ExpectStatesNear(Element::kBF16, got, want, "group " + std::to_string(group));
        if (HasFatalFailure()) return;
      }
      options.begin = {0, 0, 5, 64, 100, 250, 250, 300, 529};
    }
  }
}

// Splits may end anywhere: keys from the end on belong to the next part, or to nobody.
TEST(Decode, SplitsOfAnyLength) {
  for (const int dim : {64, 256}) {
    const GpuKv kv(
        {.type = Element::kBF16, .head_dim = dim, .page_tokens = 16, .run_tokens = {150}});
    const GpuQueries queries(kv, {.group = 2, .run = {0, 0}, .visible = {100, 150}});
    HostStates want = queries.Reference();
    DecodePlan plan;
    for (const int64_t first : {0, 16, 32, 112, 144}) {
      const int64_t end = first == 0 ? 16 : first == 16 ? 32 : first == 32 ? 112 : first + 32;
      plan.work.push_back({0, 4, 0, first, end, static_cast<int32_t>(plan.parts++)});
    }
    plan.merge.push_back({0, 4, 0, static_cast<int32_t>(plan.parts)});
    HostStates got = RunDecode(queries, plan, 1, dim);
    ExpectStatesNear(Element::kBF16, got, want, "dim " + std::to_string(dim));
  }
}

// With and without a table, whole and split.
TEST(Decode, OffsetsAre64Bit) {
  constexpr int64_t kKeys = FarPages::kPages * 16;
  const GpuKv near({.type = Element::kBF16,
                    .head_dim = 64,
                    .kv_heads = 1,
                    .page_tokens = 16,
                    .run_tokens = {kKeys},
                    .indexed = false});
  FarPages far;
  near.CopyTo(far);
  const GpuQueries queries(near, {.group = 2, .run = {0, 0}, .visible = {33, kKeys}});
  const DeviceArray<uint32_t> table(std::vector<uint32_t>{0, 1, 2, 3});
  for (const int blocks : {1, 100}) {
    const DecodePlan plan =
        PlanDecode({{0, 2, 0, 0, kKeys}}, {.group = 2, .kv_heads = 1, .blocks = blocks});
    const HostStates want = RunDecode(queries, plan, 1, 64);
    for (const int64_t first : {int64_t{0}, int64_t{KvRunView::kConsecutive}}) {
      const DeviceArray<KvRunView> run(std::vector<KvRunView>{{first, 0}});
      const HostStates got = RunDecode(queries, plan, 1, 64, 0, [&](AttentionArgs& args) {
        args.kv.base = far.base();
        args.kv.page_stride = FarPages::kStride;
        args.page_table = table.data();
        args.runs = run.data();
      });
      EXPECT_EQ(got.max, want.max);
      EXPECT_EQ(got.acc, want.acc);
    }
  }
}

TEST(Decode, OtherShapesAreRefused) {
  DecodeArgs args{};
  args.works = 1;
  args.attention.kv_heads = 1;
  args.attention.type = Element::kBF16;
  args.attention.head_dim = 100;
  EXPECT_NE(AttendDecode(args, nullptr), 0);
  args.works = 0;
  EXPECT_EQ(AttendDecode(args, nullptr), 0);
}

}  // namespace
}  // namespace ringfill::gpu
