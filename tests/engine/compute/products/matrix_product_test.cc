#include "engine/compute/products/matrix_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "engine/compute/products/elementwise.h"
#include "engine/compute/products/pack.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/products/weights_for_test.h"

namespace ringfill {
namespace {

std::vector<float> RoundedTo(DType type, std::vector<float> v) {
  if (type == DType::kBF16) {
    for (float& x : v) x = ToFloat(ToBf16(x));
  }
  return v;
}

// Rows [begin, begin + n) of w.
std::vector<float> Expanded(const WeightMatrix& w, int64_t begin, int64_t n) {
  std::vector<float> out;
  for (int64_t r = begin; r < begin + n; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) out.push_back(static_cast<float>(WeightAt(w, r, c)));
  }
  return out;
}

struct Case {
  DType dtype;
  DType y_type;
  int64_t n, k;
};

std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  const auto& [dtype, y_type, n, k] = info.param;
  return std::string(DTypeName(dtype)) + "_to_" + std::string(DTypeName(y_type)) + "_" +
         std::to_string(n) + "x" + std::to_string(k);
}

class MatrixProductTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { products_.Pack(stored_.matrix, 3, format_, packed_.data()); }

  // x: [rows, k]; returns [rows, n].
  std::vector<float> Run(MatrixProducts& products, const std::vector<float>& x, int64_t rows) {
    const auto [dtype, y_type, n, k] = GetParam();
    const int64_t tile = std::max(kStrictProductRows, ProductRowTile(rows));
    AlignedBuffer x_buffer(static_cast<size_t>(tile * k) * DTypeBytes(dtype));
    AlignedBuffer y_buffer(static_cast<size_t>(tile * n) * DTypeBytes(y_type));
    std::memset(x_buffer.data(), 0xff, x_buffer.size());  // NaN in the rows past the end
    ConvertFloats(x.data(), rows * k, dtype, x_buffer.data());
    products.Run(format_, packed_.data(), x_buffer.data(), rows, y_type, y_buffer.data());
    std::vector<float> y(static_cast<size_t>(rows * n));
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = y_type == DType::kF32 ? y_buffer.as<float>()[i] : ToFloat(y_buffer.as<Bf16>()[i]);
    }
    return y;
  }

  // Rows 3 to n + 3 of a taller matrix are used. For bf16, weights that need no rounding: machines
  // without bf16 products keep them in float32.
  const StoredWeights stored_{
      GetParam().dtype == DType::kF32 ? WeightType::kF32 : WeightType::kBF16, GetParam().n + 5,
      GetParam().k, 1, 32};
  const PackedFormat format_{GetParam().dtype, GetParam().n, GetParam().k};
  const AlignedBuffer packed_{format_.bytes()};
  MatrixProducts products_;
};

TEST_P(MatrixProductTest, EqualsReferenceForEveryRowCount) {
  const auto [dtype, y_type, n, k] = GetParam();
  const std::vector<float> w = Expanded(stored_.matrix, 3, n);
  const std::vector<float> x = RoundedTo(dtype, RandomFloats(kMaxProductRows * k, 2));
  std::vector<float> want(static_cast<size_t>(kMaxProductRows * n));
  MatrixProductReference(x.data(), w.data(), kMaxProductRows, n, k, want.data());
  const float terms = std::sqrt(static_cast<float>(k));  // size of a sum of k products of normals
  for (int64_t rows : {1, 5, 16, 17, 64, 100, 256}) {
    const std::vector<float> got = Run(products_, x, rows);
    for (int64_t i = 0; i < rows * n; ++i) {
      const float rounding = y_type == DType::kBF16 ? std::abs(want[i]) / 255 : 0;
      ASSERT_NEAR(got[i], want[i], 8e-6f * terms + rounding) << "rows " << rows << " at " << i;
    }
  }
}

TEST_P(MatrixProductTest, BitsOfARowDoNotDependOnTheOthersInItsTile) {
  const auto [dtype, y_type, n, k] = GetParam();
  for (const auto& [tile, fewer] : {std::pair<int64_t, std::vector<int64_t>>{16, {1, 5, 15}},
                                    {64, {17, 40, 63}},
                                    {256, {65, 100, 255}}}) {
    const std::vector<float> x = RandomFloats(tile * k, 3);
    const std::vector<float> whole = Run(products_, x, tile);
    for (int64_t rows : fewer) {
      ASSERT_EQ(ProductRowTile(rows), tile);
      const std::vector<float> part = Run(products_, x, rows);
      ASSERT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0) << rows;
    }
  }
}

TEST_P(MatrixProductTest, BitsDoNotDependOnTheNumberOfRowsInAFixedTile) {
  const auto [dtype, y_type, n, k] = GetParam();
  MatrixProducts fixed(kStrictProductRows);
  const std::vector<float> x = RandomFloats(256 * k, 5);
  const std::vector<float> whole = Run(fixed, x, 256);
  for (int64_t rows : {1, 16, 17, 63, 64, 65, 200}) {
    const std::vector<float> part = Run(fixed, x, rows);
    ASSERT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0) << rows;
  }
}

TEST_P(MatrixProductTest, ThreadsShareOnePackedWeight) {
  const auto [dtype, y_type, n, k] = GetParam();
  const std::vector<float> x = RandomFloats(100 * k, 4);
  const std::vector<float> want = Run(products_, x, 100);
  std::vector<std::vector<float>> got(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      MatrixProducts own;
      AlignedBuffer again(format_.bytes());
      for (int64_t rows : {3, 20, 100}) got[t] = Run(own, x, rows);
      own.Pack(stored_.matrix, 3, format_, again.data());
      EXPECT_EQ(std::memcmp(again.data(), packed_.data(), again.size()), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& y : got) EXPECT_EQ(y, want);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatrixProductTest,
                         testing::Values(Case{DType::kF32, DType::kF32, 576, 192},
                                         Case{DType::kF32, DType::kBF16, 192, 576},
                                         Case{DType::kF32, DType::kF32, 49, 96},
                                         Case{DType::kF32, DType::kF32, 1, 1},
                                         Case{DType::kF32, DType::kF32, 200, 1000},
                                         Case{DType::kBF16, DType::kF32, 576, 192},
                                         Case{DType::kBF16, DType::kBF16, 192, 576},
                                         Case{DType::kBF16, DType::kF32, 49, 96},
                                         Case{DType::kBF16, DType::kBF16, 65, 77},
                                         Case{DType::kBF16, DType::kF32, 200, 1536}),
                         NameOfCase);

TEST(ProductRowTileTest, IsTheSmallestThatHolds) {
  for (int64_t rows = 1; rows <= kMaxProductRows; ++rows) {
    EXPECT_EQ(ProductRowTile(rows), rows <= 16 ? 16 : rows <= 64 ? 64 : 256) << rows;
  }
}

TEST(MatrixProductsTest, ReferenceEqualsHandMadeSums) {
  const float x[] = {1, 2, 3, 0, -1, 0.5f};
  const float w[] = {1, 10, 100, 2, 2, 2};
  float y[4];
  MatrixProductReference(x, w, 2, 2, 3, y);
  EXPECT_EQ(y[0], 321.0f);
  EXPECT_EQ(y[1], 12.0f);
  EXPECT_EQ(y[2], 40.0f);
  EXPECT_EQ(y[3], -1.0f);
}

TEST(MatrixProductsTest, OneObjectServesManyFormatsInTurn) {
  MatrixProducts products;
  std::vector<StoredWeights> weights;
  std::vector<PackedFormat> formats;
  std::vector<AlignedBuffer> packed;
  const AlignedBuffer x(16 * 128 * sizeof(float)), y(16 * 128 * sizeof(float));
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t n : {32, 64, 128}) {
      weights.emplace_back(WeightType::kBF16, n, 64, static_cast<unsigned>(n), 2);
      formats.emplace_back(dtype, n, 64);
      packed.emplace_back(formats.back().bytes());
      products.Pack(weights.back().matrix, 0, formats.back(), packed.back().data());
    }
  }
  MatrixProducts moved = std::move(products);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < formats.size(); ++i) {
      // Row r of x has a single one, at r: y[r, c] = w(c, r).
      std::vector<float> ones(16 * 64, 0.0f);
      for (int r = 0; r < 16; ++r) ones[r * 64 + r] = 1.0f;
      ConvertFloats(ones.data(), 16 * 64, formats[i].dtype(), x.data());
      moved.Run(formats[i], packed[i].data(), x.data(), 16, DType::kF32, y.data());
      const std::vector<float> w = Expanded(weights[i].matrix, 0, formats[i].n());
      for (int64_t r = 0; r < 16; ++r) {
        for (int64_t c = 0; c < formats[i].n(); ++c) {
          ASSERT_EQ(y.as<float>()[r * formats[i].n() + c], w[c * 64 + r]) << i << " " << r;
        }
      }
    }
  }
}

// oneDNN keeps one cache of primitives for the process: what one thread makes, another may be
// given.
TEST(MatrixProductsTest, ThreadsMakeTheSamePrimitivesAtOnce) {
  const StoredWeights stored(WeightType::kF32, 96, 64, 8, 32);
  const AlignedBuffer x(256 * 64 * sizeof(float));
  for (int i = 0; i < 256 * 64; ++i) x.as<float>()[i] = static_cast<float>(i % 7);
  std::vector<std::vector<float>> got(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int64_t n = 17; n < 96; n += 13) {
        MatrixProducts products;
        const PackedFormat format(DType::kF32, n, 64);
        const AlignedBuffer packed(format.bytes()), y(256 * 96 * sizeof(float));
        products.Pack(stored.matrix, 0, format, packed.data());
        for (int64_t rows : {1, 60, 200}) {
          products.Run(format, packed.data(), x.data(), rows, DType::kF32, y.data());
          got[t].insert(got[t].end(), y.as<float>(), y.as<float>() + rows * n);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& y : got) EXPECT_EQ(y, got[0]);
}

// oneDNN's own threads would fight with the engine's.
TEST(MatrixProductsTest, StartsNoThreads) {
  const auto threads_now = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task"), end;
    return std::distance(tasks, end);
  };
  std::thread([&] {
    const auto before = threads_now();
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const StoredWeights stored(WeightType::kQ4_1, 576, 576, 6, 32);
      const PackedFormat format(dtype, 576, 576);
      const AlignedBuffer packed(format.bytes());
      const AlignedBuffer x(256 * 576 * sizeof(float)), y(256 * 576 * sizeof(float));
      MatrixProducts products;
      products.Pack(stored.matrix, 0, format, packed.data());
      for (int64_t rows : {16, 64, 256}) {
        products.Run(format, packed.data(), x.data(), rows, DType::kF32, y.data());
      }
    }
    EXPECT_EQ(threads_now(), before);
  }).join();
}

// The places of every element in a panel order, from its definition.
TEST(PackPanelsTest, EverySetWritesTheOrderExactly) {
  for (WeightType type : kAllWeightTypes) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& [n, k, width, k_padded] :
           {std::tuple<int64_t, int64_t, int64_t, int64_t>{64, 96, 64, 96},
            {20, 1120, 64, 1120},
            {33, 544, 16, 576},
            {49, 64, 49, 64},
            {65, 77, 65, 78},
            {3, 1, 16, 2}}) {
        if (k % GetWeightTypeInfo(type).block_weights != 0) continue;
        const StoredWeights stored(type, n + 4, k, 5, 2);
        const PanelOrder order = {dtype, width, k_padded};
        const int64_t unit = dtype == DType::kF32 ? 1 : 2;
        const int64_t elements = (n + width - 1) / width * width * k_padded;
        for (CpuIsa isa : AvailableCpuIsas()) {
          const size_t bytes = static_cast<size_t>(elements) * DTypeBytes(dtype);
          AlignedBuffer packed(bytes + 4096);
          std::memset(packed.data(), 0xff, packed.size());
          PackPanels(isa, stored.matrix, 4, n, order, packed.data());
          for (size_t i = bytes; i < packed.size(); ++i) {
            ASSERT_EQ(packed.data()[i], std::byte{0xff}) << "written past the end";
          }
          for (int64_t i = 0; i < elements; ++i) {
            const int64_t in_panel = i % (width * k_padded);
            const int64_t row = i / (width * k_padded) * width + in_panel / unit % width;
            const int64_t column = in_panel / (width * unit) * unit + in_panel % unit;
            const float want = row < n && column < k
                                   ? static_cast<float>(WeightAt(stored.matrix, row + 4, column))
                                   : 0;
            if (dtype == DType::kF32) {
              ASSERT_EQ(packed.as<float>()[i], want) << NameOf(type) << " " << CpuIsaName(isa)
                                                     << " row " << row << " column " << column;
            } else {
              ASSERT_EQ(ToFloat(packed.as<Bf16>()[i]), ToFloat(ToBf16(want)))
                  << NameOf(type) << " " << CpuIsaName(isa) << " row " << row << " column "
                  << column;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
