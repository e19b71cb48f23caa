// A library's attention with the kernels around it against the plain reference: on emulated GPUs
// that of tests/engine/compute/cuda/emulated_fused, on real ones cuDNN's.
#include "engine/compute/cuda/fused_attention.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/fused_work.h"
#include "engine/compute/cuda/kernels/fused_rows.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/gpu_kv.h"

namespace ringfill::gpu {
namespace {

constexpr int kEntries = 4;

FusedAttentionOptions OptionsFor(const KvPages& pages, int head_dim, int kv_heads) {
  return {.head_dim = head_dim,
          .kv_heads = kv_heads,
          .page_tokens = pages.page_tokens,
          .entries = kEntries,
          .table_pages = 64,
          .page_limit = 256,
          .page_strides = {pages.page_stride}};
}

// Entries of whole calls through the library into the states.
class LibraryCalls {
 public:
  LibraryCalls(const AttentionArgs& attention, std::vector<FusedEntry> entries,
               FusedAttention& library, unsigned long long* nonfinite)
      : options_(OptionsFor(attention.kv, attention.head_dim, attention.kv_heads)),
        rows_(static_cast<size_t>(kEntries * attention.kv_heads * kFusedRows)),
        dim_(static_cast<size_t>(attention.head_dim)),
        q_(rows_ * dim_),
        out_(rows_ * dim_),
        log_sum_exp_(rows_),
        tables_(static_cast<size_t>(kEntries * options_.table_pages)),
        workspace_(std::max<size_t>(1, library.workspace_bytes())) {
    FillUpEntries(entries, kEntries);
    for (size_t first = 0; first < entries.size(); first += kEntries) {
      Run(attention,
          {entries.begin() + static_cast<ptrdiff_t>(first),
           entries.begin() + static_cast<ptrdiff_t>(first + kEntries)},
          library, nonfinite);
    }
  }
  const DeviceArray<int32_t>& tables() const { return tables_; }

 private:
  void Run(const AttentionArgs& attention, const std::vector<FusedEntry>& entries,
           FusedAttention& library, unsigned long long* nonfinite) {
    std::vector<int32_t> lengths, keys;
    for (const FusedEntry& entry : entries) {
      lengths.push_back(std::max(1, entry.tokens * attention.group));
      keys.push_back(entry.pages * attention.kv.page_tokens);
    }
    const DeviceArray<FusedEntry> device_entries(entries);
    const DeviceArray<int32_t> device_lengths(lengths), device_keys(keys);
    const FusedRowsArgs args = {attention, device_entries.data(), kEntries, options_.table_pages};
    ASSERT_EQ(GatherFusedQueries(args, q_.data(), nullptr), 0);
    ASSERT_EQ(FillFusedTables(args, tables_.data(), nullptr), 0);
    const absl::Status status = library.Run({.q = q_.data(),
                                             .rows = device_lengths.data(),
                                             .keys = device_keys.data(),
                                             .pages = tables_.data(),
                                             .kv = attention.kv,
                                             .out = out_.data(),
                                             .log_sum_exp = log_sum_exp_.data(),
                                             .workspace = workspace_.data()},
                                            nullptr);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(MergeFused(args, out_.data(), log_sum_exp_.data(), nonfinite, nullptr), 0);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  const FusedAttentionOptions options_;
  const size_t rows_, dim_;
  const DeviceArray<uint16_t> q_, out_;
  const DeviceArray<float> log_sum_exp_;
  const DeviceArray<int32_t> tables_;
  const DeviceArray<std::byte> workspace_;
};

struct Shape {
  int head_dim, kv_heads, group, page_tokens;
  bool indexed = true;
};

class FusedAttentionTest : public testing::TestWithParam<Shape> {
 protected:
  std::unique_ptr<FusedAttention> Library(const GpuKv& kv) {
    auto made =
        MakeFusedAttention(0, OptionsFor(kv.pages(), kv.options().head_dim, kv.options().kv_heads));
    if (absl::IsUnimplemented(made.status())) return nullptr;
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
};

// Split as ranks do it, rows of two runs and of a document that begins within a page.
TEST_P(FusedAttentionTest, WithTheKernelsMatchesTheReference) {
  const Shape& s = GetParam();
  GpuQueryOptions options{.group = s.group, .run = {}, .visible = {}, .begin = {}, .fresh = false};
  std::vector<TokenSpan> spans;
  const auto add = [&](int run, int64_t begin, int64_t first, int tokens, int64_t step) {
    spans.push_back({.token = static_cast<int64_t>(options.visible.size()),
                     .tokens = tokens,
                     .run = run,
                     .bit = run,
                     .visible = first + (tokens - 1) * step,
                     .begin = begin});
    for (int t = 0; t < tokens; ++t) {
      options.run.push_back(run);
      options.visible.push_back(first + t * step);
      options.begin.push_back(begin);
    }
  };
  add(0, 0, 300, 70, 1);   // the diagonal
  add(1, 0, 272, 40, 0);   // level, whole pages of 16
  add(1, 37, 300, 30, 0);  // a document
  add(0, 0, 5, 3, 1);      // too short
  const GpuKv kv({.type = Element::kBF16,
                  .head_dim = s.head_dim,
                  .kv_heads = s.kv_heads,
                  .page_tokens = s.page_tokens,
                  .run_tokens = {369, 300},
                  .indexed = s.indexed});
  const GpuQueries queries(kv, options);
  const std::unique_ptr<FusedAttention> library = Library(kv);
  if (library == nullptr) GTEST_SKIP() << "no library takes it here";
  const AttentionSplit split = SplitAttention(
      spans, options.visible, {true, true},
      {.group = s.group, .page_tokens = s.page_tokens, .table_pages = 64, .least_keys = 16});
  ASSERT_GE(split.entries.size(), 3u);
  const DeviceStates states(queries.start());
  const DeviceArray<unsigned long long> mask(std::vector<unsigned long long>{0});
  AttentionArgs args = queries.Args(states.arrays());
  const auto kernels = [&](const std::vector<TokenSpan>& part, bool level) {
    std::vector<int64_t> visible = options.visible, begin(visible.size());
    for (const TokenSpan& span : part) {
      for (int64_t t = span.token; t < span.token + span.tokens; ++t) {
        begin[static_cast<size_t>(t)] = span.begin;
        if (level) visible[static_cast<size_t>(t)] = span.visible;
      }
    }
    const DeviceArray<int64_t> device_visible(visible), device_begin(begin);
    const DeviceArray<PrefillWork> work(PlanPrefill(part, s.group));
    args.visible = device_visible.data();
    args.begin = device_begin.data();
    ASSERT_EQ(
        AttendPrefill({args, work.data(), static_cast<int>(work.size()), mask.data()}, nullptr), 0);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  kernels(split.before, true);
  const LibraryCalls calls(args, split.entries, *library, mask.data());
  kernels(split.rest, false);
  if (HasFatalFailure()) return;
  EXPECT_EQ(mask.Read()[0], 0u);
  HostStates got = queries.start();
  states.Read(got);
  HostStates want = queries.Reference();
  ExpectStatesNear(Element::kBF16, got, want, "split");
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedAttentionTest,
                         testing::Values(Shape{64, 2, 1, 16}, Shape{64, 1, 3, 64, false},
                                         Shape{80, 1, 2, 32}, Shape{96, 2, 2, 16, false},
                                         Shape{128, 2, 4, 64}, Shape{256, 1, 1, 128}),
                         [](const auto& info) {
                           const Shape& s = info.param;
                           return absl::StrCat("dim", s.head_dim, "_heads", s.kv_heads, "_group",
                                               s.group, "_page", s.page_tokens,
                                               s.indexed ? "" : "_consecutive");
                         });

// A value that is not finite among the keys shows in the mask of the entry's chunk alone.
TEST_F(FusedAttentionTest, NotFiniteIsNoted) {
  // Run 1 is said to be longer than what was stored: NaN from token 40 on.
  const GpuKv kv(
      {.type = Element::kBF16, .head_dim = 64, .page_tokens = 16, .run_tokens = {48, 40}});
  const GpuQueries queries(kv, {.group = 2, .run = {0, 1}, .visible = {48, 48}});
  const std::unique_ptr<FusedAttention> library = Library(kv);
  if (library == nullptr) GTEST_SKIP() << "no library takes it here";
  const DeviceStates states(queries.start());
  const DeviceArray<unsigned long long> mask(std::vector<unsigned long long>{1});
  const std::vector<FusedEntry> entries = {
      {.token = 0, .tokens = 1, .run = 0, .first_page = 0, .pages = 3, .bit = 3},
      {.token = 1, .tokens = 1, .run = 1, .first_page = 0, .pages = 3, .bit = 41}};
  const LibraryCalls calls(queries.Args(states.arrays()), entries, *library, mask.data());
  EXPECT_EQ(mask.Read()[0], 1u | uint64_t{1} << 41);
}

// Rows of tables beyond an entry's pages name its last one, up to a tile of keys.
TEST_F(FusedAttentionTest, TablesNameOnlyPagesThatAreThere) {
  const GpuKv kv({.type = Element::kBF16,
                  .head_dim = 64,
                  .page_tokens = 64,
                  .run_tokens = {128, 320},
                  .indexed = false});
  const GpuQueries queries(kv, {.group = 1, .run = {1}, .visible = {320}});
  const DeviceStates states(queries.start());
  const DeviceArray<FusedEntry> entries(std::vector<FusedEntry>{
      {.token = 0, .tokens = 1, .run = 1, .first_page = 1, .pages = 3, .bit = 0}});
  const DeviceArray<int32_t> tables(std::vector<int32_t>(6, -1));
  ASSERT_EQ(FillFusedTables({queries.Args(states.arrays()), entries.data(), 1, 6}, tables.data(),
                            nullptr),
            0);
  EXPECT_EQ(tables.Read(), (std::vector<int32_t>{3, 4, 5, 5, -1, -1}));
}

}  // namespace
}  // namespace ringfill::gpu
