#include "engine/compute/attention/kv_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/float_types.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

constexpr auto kPoison = std::byte{0xa5};

struct Blocks {
  explicit Blocks(const KvBlockShape& shape)
      : k(shape.BlockBytes(), kPoison), v(shape.BlockBytes(), kPoison) {}
  std::vector<std::byte> k, v;
};

float Stored(DType type, float x) { return type == DType::kF32 ? x : ToFloat(ToBf16(x)); }

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

class KvLayoutTest : public testing::TestWithParam<DType> {};

TEST_P(KvLayoutTest, ElementOrderIsTheDocumentedOne) {
  const KvBlockShape shape{GetParam(), 6, 16};
  Blocks blocks(shape);
  std::vector<float> k(16 * 6), v(16 * 6);
  for (int i = 0; i < 16 * 6; ++i) {
    k[i] = static_cast<float>(i);
    v[i] = static_cast<float>(-i);
  }
  StoreKv(shape, 0, 16, k.data(), v.data(), 6, blocks.k.data(), blocks.v.data());
  for (int t = 0; t < 16; ++t) {
    for (int d = 0; d < 6; ++d) {
      if (shape.type == DType::kF32) {
        float k_at, v_at;
        std::memcpy(&k_at, blocks.k.data() + 4 * (d * 16 + t), 4);
        std::memcpy(&v_at, blocks.v.data() + 4 * (t * 6 + d), 4);
        EXPECT_EQ(k_at, k[t * 6 + d]);
        EXPECT_EQ(v_at, v[t * 6 + d]);
      } else {
        Bf16 k_at, v_at;
        std::memcpy(&k_at, blocks.k.data() + 2 * ((d / 2) * 32 + 2 * t + d % 2), 2);
        std::memcpy(&v_at, blocks.v.data() + 2 * ((t / 2) * 12 + 2 * d + t % 2), 2);
        EXPECT_EQ(ToFloat(k_at), k[t * 6 + d]);
        EXPECT_EQ(ToFloat(v_at), v[t * 6 + d]);
      }
    }
  }
}

TEST_P(KvLayoutTest, EveryRunOfTokensRoundTripsAndTouchesNothingElse) {
  for (const int dim : {2, 20, 64, 80}) {
    const int page = dim == 64 ? 64 : 48;
    const KvBlockShape shape{GetParam(), dim, page};
    const ptrdiff_t stride = dim + 5;
    const std::vector<float> k = RandomFloats(page * stride, 1);
    const std::vector<float> v = RandomFloats(page * stride, 2);
    for (int first = 0; first < page; first += 3) {
      for (const int rows : {0, 1, 2, 7, 16, 17, 33, page - first}) {
        if (first + rows > page) continue;
        Blocks blocks(shape);
        const Blocks before(shape);
        StoreKv(shape, first, rows, k.data(), v.data(), stride, blocks.k.data(), blocks.v.data());
        std::vector<float> k_out(dim), v_out(dim), k_was(dim), v_was(dim);
        for (int t = 0; t < page; ++t) {
          LoadKv(shape, t, blocks.k.data(), blocks.v.data(), k_out.data(), v_out.data());
          LoadKv(shape, t, before.k.data(), before.v.data(), k_was.data(), v_was.data());
          const bool stored = t >= first && t < first + rows;
          for (int d = 0; d < dim; ++d) {
            const ptrdiff_t i = (t - first) * stride + d;
            ASSERT_EQ(k_out[d], stored ? Stored(shape.type, k[i]) : k_was[d])
                << "dim " << dim << " first " << first << " rows " << rows << " token " << t;
            ASSERT_EQ(v_out[d], stored ? Stored(shape.type, v[i]) : v_was[d])
                << "dim " << dim << " first " << first << " rows " << rows << " token " << t;
          }
        }
      }
    }
  }
}

TEST_P(KvLayoutTest, TokenByTokenStoresGiveTheBitsOfOneStore) {
  const KvBlockShape shape{GetParam(), 64, 64};
  const std::vector<float> k = RandomFloats(64 * 64, 3);
  const std::vector<float> v = RandomFloats(64 * 64, 4);
  Blocks whole(shape), pieces(shape);
  StoreKv(shape, 0, 64, k.data(), v.data(), 64, whole.k.data(), whole.v.data());
  std::mt19937 rng(5);
  for (int t = 0; t < 64;) {
    const int rows = std::min<int>(64 - t, 1 + rng() % 19);
    StoreKv(shape, t, rows, k.data() + t * 64, v.data() + t * 64, 64, pieces.k.data(),
            pieces.v.data());
    t += rows;
  }
  EXPECT_EQ(whole.k, pieces.k);
  EXPECT_EQ(whole.v, pieces.v);
}

TEST_P(KvLayoutTest, SpecialValuesKeepTheirMeaning) {
  const KvBlockShape shape{GetParam(), 16, 16};
  Blocks blocks(shape);
  std::vector<float> k(16 * 16), v(16 * 16);
  const float specials[] = {INFINITY, -INFINITY, NAN,     -0.0f,   0.0f,  1e-45f, 3.4e38f, 1.0f,
                            -1.5f,    65536.0f,  1.0039f, 1.0118f, 1e-3f, -1e30f, 7.0f,    -NAN};
  for (int i = 0; i < 16 * 16; ++i) {
    k[i] = specials[i % 16];
    v[i] = specials[(i + 5) % 16];
  }
  StoreKv(shape, 0, 16, k.data(), v.data(), 16, blocks.k.data(), blocks.v.data());
  float k_out[16], v_out[16];
  for (int t = 0; t < 16; ++t) {
    LoadKv(shape, t, blocks.k.data(), blocks.v.data(), k_out, v_out);
    for (int d = 0; d < 16; ++d) {
      const float k_want = Stored(shape.type, k[t * 16 + d]);
      const float v_want = Stored(shape.type, v[t * 16 + d]);
      EXPECT_TRUE(k_out[d] == k_want || (std::isnan(k_out[d]) && std::isnan(k_want)));
      EXPECT_TRUE(v_out[d] == v_want || (std::isnan(v_out[d]) && std::isnan(v_want)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KvLayoutTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ringfill
