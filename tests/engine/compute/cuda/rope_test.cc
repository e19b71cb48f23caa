#include "engine/compute/cuda/kernels/rope.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compute/attention/attention.h"
#include "engine/compute/products/elementwise.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/device_array.h"
#include "tests/engine/compute/cuda/elements.h"
#include "tests/engine/compute/cuda/far_pages.h"

namespace ringfill::gpu {
namespace {

std::vector<float> Normals(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

TEST(RopeAngles, MatchTheCpuAtMillions) {
  for (const int dims : {2, 64, 80, 128}) {
    const ringfill::Rope rope(
        {.head_dim = dims, .rope_dims = dims, .base = 10000.0, .factors = {}});
    std::vector<double> frequency;
    for (int i = 0; i < dims / 2; ++i) frequency.push_back(std::pow(10000.0, -2.0 * i / dims));
    const std::vector<int64_t> position = {0, 1, 2, 63, 8191, 131071, 9999991};
    const DeviceArray<int64_t> device_position(position);
    const DeviceArray<double> device_frequency(frequency);
    const DeviceArray<float> angles(position.size() * static_cast<size_t>(dims));
    ASSERT_EQ(RopeAngles(device_position.data(), static_cast<int64_t>(position.size()),
                         device_frequency.data(), dims, angles.data(), nullptr),
              0);
    const std::vector<float> got = angles.Read();
    std::vector<float> want(static_cast<size_t>(dims));
    for (size_t r = 0; r < position.size(); ++r) {
      rope.Angles(position[r], want.data());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[r * want.size() + i], want[i], 2e-7f) << "position " << position[r];
      }
    }
  }
}

struct Shape {
  int kv_heads, group, head_dim, rope_dims, page_tokens;
  int64_t rows;
};

class RotateAndStoreTest : public testing::TestWithParam<std::tuple<Shape, Element>> {
 protected:
  const Shape& shape() const { return std::get<0>(GetParam()); }
  Element type() const { return std::get<1>(GetParam()); }

  void ExpectNear(const std::vector<float>& got, const std::vector<float>& want,
                  const std::string& what) const {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], Epsilon(type()) * std::fabs(want[i]) + 1e-6f)
          << what << " at " << i;
    }
  }
};

TEST_P(RotateAndStoreTest, PutsEverythingInItsPlace) {
  const Shape& s = shape();
  const int heads = s.kv_heads * s.group;
  const int64_t q_width = int64_t{heads} * s.head_dim, kv_width = int64_t{s.kv_heads} * s.head_dim;
  const int64_t width = q_width + 2 * kv_width;  // q, k and v of a row beside each other
  std::vector<float> rows = Normals(s.rows * width, 1);
  const std::vector<float> angles = Normals(s.rows * s.rope_dims, 2);
  const int64_t block = int64_t{s.page_tokens} * s.head_dim;  // elements
  const auto bytes = static_cast<int64_t>(ElementBytes(type()));
  const int64_t k_offset = 64, v_offset = k_offset + kv_width * s.page_tokens * bytes + 16;
  const int64_t stride = v_offset + kv_width * s.page_tokens * bytes + 32;
  // Row r goes to a page, to the outbox, to both or nowhere.
  std::vector<KvTarget> targets;
  const int64_t pages = 2 * (s.rows / s.page_tokens + 1);
  for (int64_t r = 0; r < s.rows; ++r) {
    KvTarget target;
    if (r % 4 != 1) {
      target.page = static_cast<uint32_t>(pages - 1 - r / s.page_tokens);
      target.token_in_page = static_cast<int32_t>((r + 3) % s.page_tokens);
    }
    if (r % 4 == 1 || r % 4 == 2) target.outbox_slot = s.rows - 1 - r;
    if (r % 4 == 3) target = {};
    targets.push_back(target);
  }
  constexpr int64_t kFirst = 2, kAfter = 3;
  const int64_t all_rows = kFirst + s.rows + kAfter;
  const DeviceArray<float> device_rows(rows), device_angles(angles);
  const DeviceArray<KvTarget> device_targets(targets);
  const DeviceArray<std::byte> pool(static_cast<size_t>(pages * stride));
  const DeviceArray<std::byte> outbox(static_cast<size_t>(s.rows * 2 * kv_width * bytes));
  const DeviceArray<std::byte> packed(static_cast<size_t>(all_rows * q_width * bytes));
  ASSERT_EQ(RotateAndStore({.q = device_rows.data(),
                            .k = device_rows.data() + q_width,
                            .v = device_rows.data() + q_width + kv_width,
                            .q_stride = width,
                            .kv_stride = width,
                            .angles = device_angles.data(),
                            .rows = s.rows,
                            .first_row = kFirst,
                            .all_rows = all_rows,
                            .kv_heads = s.kv_heads,
                            .group = s.group,
                            .head_dim = s.head_dim,
                            .rope_dims = s.rope_dims,
                            .type = type(),
                            .packed_q = packed.data(),
                            .targets = device_targets.data(),
                            .pages = {pool.data(), stride, k_offset, v_offset, s.page_tokens},
                            .outbox = outbox.data()},
                           nullptr),
            0);

  // What the CPU makes of the same rows, in its order.
  const ringfill::Rope rope({.head_dim = s.head_dim, .rope_dims = s.rope_dims, .factors = {}});
  const float nan = FromBytes(type(), std::vector<std::byte>(4, std::byte{0xff}))[0];
  ASSERT_TRUE(std::isnan(nan));
  const std::vector<std::byte> got_pool = pool.Read(), got_outbox = outbox.Read();
  const std::vector<float> got_q = FromBytes(type(), packed.Read());
  std::vector<std::byte> untouched = got_pool;
  const auto take = [&](const std::vector<std::byte>& from, int64_t at) {
    const auto first = from.begin() + at;
    return FromBytes(type(), {first, first + s.head_dim * bytes});
  };
  for (int64_t r = 0; r < s.rows; ++r) {
    float* q = rows.data() + r * width;
    float* k = q + q_width;
    const float* v = k + kv_width;
    rope.Apply(angles.data() + r * s.rope_dims, heads, q);
    rope.Apply(angles.data() + r * s.rope_dims, s.kv_heads, k);
    std::vector<float> scaled(static_cast<size_t>(q_width));
    PackQueries(DType::kF32, s.head_dim, q, scaled.size(), scaled.data());
    for (int h = 0; h < heads; ++h) {
      const int64_t row = (h / s.group * all_rows + kFirst + r) * s.group + h % s.group;
      const auto first = got_q.begin() + row * s.head_dim;
      ExpectNear({first, first + s.head_dim},
                 {scaled.begin() + h * s.head_dim, scaled.begin() + (h + 1) * s.head_dim}, "q");
    }
    const KvTarget& target = targets[static_cast<size_t>(r)];
    for (int g = 0; g < s.kv_heads && !HasFatalFailure(); ++g) {
      const std::vector<float> want_k(k + g * s.head_dim, k + (g + 1) * s.head_dim);
      const std::vector<float> want_v(v + g * s.head_dim, v + (g + 1) * s.head_dim);
      if (target.page != KvTarget::kNoPage) {
        const int64_t at = int64_t{target.page} * stride +
                           (g * block + int64_t{target.token_in_page} * s.head_dim) * bytes;
        ExpectNear(take(got_pool, at + k_offset), want_k, "k in page");
        ExpectNear(take(got_pool, at + v_offset), want_v, "v in page");
        for (const int64_t offset : {at + k_offset, at + v_offset}) {
          std::memset(untouched.data() + offset, 0xff, static_cast<size_t>(s.head_dim * bytes));
        }
      }
      if (target.outbox_slot >= 0) {
        const int64_t at = (target.outbox_slot * 2 * kv_width + g * s.head_dim) * bytes;
        ExpectNear(take(got_outbox, at), want_k, "k sent");
        ExpectNear(take(got_outbox, at + kv_width * bytes), want_v, "v sent");
      }
    }
    if (HasFatalFailure()) return;
  }
  // Nothing else was written.
  EXPECT_EQ(untouched, std::vector<std::byte>(untouched.size(), std::byte{0xff}));
  EXPECT_TRUE(std::isnan(got_q.front()) && std::isnan(got_q.back()));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RotateAndStoreTest,
    testing::Combine(testing::Values(Shape{1, 1, 64, 64, 16, 1}, Shape{3, 3, 64, 64, 16, 37},
                                     Shape{2, 4, 80, 80, 32, 33}, Shape{1, 8, 96, 48, 48, 7},
                                     Shape{2, 2, 128, 128, 64, 65}, Shape{1, 1, 256, 64, 16, 3},
                                     Shape{5, 1, 64, 2, 16, 17}),
                     testing::Values(Element::kF32, Element::kBF16, Element::kF16)),
    [](const auto& info) {
      const Shape& s = std::get<0>(info.param);
      return "dim" + std::to_string(s.head_dim) + "_heads" + std::to_string(s.kv_heads) + "x" +
             std::to_string(s.group) + "_rows" + std::to_string(s.rows) + "_" +
             ElementName(std::get<1>(info.param));
    });

// Without targets only queries are packed; without a place for queries only K and V are stored.
TEST(RotateAndStore, HalvesAreOptional) {
  RotateAndStoreArgs args{};
  EXPECT_EQ(RotateAndStore(args, nullptr), 0);
  const DeviceArray<float> rows(Normals(3 * 64, 3)), angles(Normals(64, 4));
  const DeviceArray<std::byte> packed(64 * 2), pool(2 * 16 * 64 * 2);
  const DeviceArray<KvTarget> targets(std::vector<KvTarget>{{0, 5, -1}});
  args.q = rows.data();
  args.k = rows.data() + 64;
  args.v = rows.data() + 128;
  args.q_stride = args.kv_stride = 192;
  args.angles = angles.data();
  args.rows = args.all_rows = 1;
  args.kv_heads = args.group = 1;
  args.head_dim = args.rope_dims = 64;
  args.type = Element::kBF16;
  args.pages = {pool.data(), 2 * 16 * 64 * 2, 0, 16 * 64 * 2, 16};
  args.packed_q = packed.data();
  ASSERT_EQ(RotateAndStore(args, nullptr), 0);
  EXPECT_NE(packed.Read()[0], std::byte{0xff});
  EXPECT_EQ(pool.Read(), std::vector<std::byte>(pool.size(), std::byte{0xff}));
  args.packed_q = nullptr;
  args.targets = targets.data();
  ASSERT_EQ(RotateAndStore(args, nullptr), 0);
  EXPECT_TRUE(std::isfinite(FromBytes(Element::kBF16, pool.Read())[5 * 64]));
}

TEST(RotateAndStore, OffsetsAre64Bit) {
  constexpr int64_t kBlock = 16 * 64 * 2;
  const DeviceArray<float> rows(Normals(3 * 64, 3)), angles(Normals(64, 4));
  const DeviceArray<std::byte> near(2 * kBlock);
  FarPages far;
  RotateAndStoreArgs args{};
  args.q = rows.data();
  args.k = rows.data() + 64;
  args.v = rows.data() + 128;
  args.q_stride = args.kv_stride = 192;
  args.angles = angles.data();
  args.rows = args.all_rows = 1;
  args.kv_heads = args.group = 1;
  args.head_dim = args.rope_dims = 64;
  args.type = Element::kBF16;
  const DeviceArray<KvTarget> here(std::vector<KvTarget>{{0, 5, -1}});
  args.targets = here.data();
  args.pages = {near.data(), 2 * kBlock, 0, kBlock, 16};
  ASSERT_EQ(RotateAndStore(args, nullptr), 0);
  const DeviceArray<KvTarget> there(std::vector<KvTarget>{{3, 5, -1}});
  args.targets = there.data();
  args.pages.base = far.base();
  args.pages.page_stride = FarPages::kStride;
  ASSERT_EQ(RotateAndStore(args, nullptr), 0);
  const std::vector<std::byte> want = near.Read();
  for (const int64_t offset : {int64_t{0}, kBlock}) {
    const auto row = want.begin() + offset + 5 * 64 * 2;
    EXPECT_EQ(far.Read(3, offset + 5 * 64 * 2, 64 * 2), std::vector<std::byte>(row, row + 64 * 2));
  }
}

}  // namespace
}  // namespace ringfill::gpu
