#include "engine/compute/products/matrix_product.h"

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "engine/compute/products/elementwise.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

std::vector<float> RandomFloats(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out) v = normal(random);
  return out;
}

std::vector<float> RoundedTo(DType type, std::vector<float> v) {
  if (type == DType::kBF16) {
    for (float& x : v) x = ToFloat(ToBf16(x));
  }
  return v;
}

std::vector<float> ReadFloats(const AlignedBuffer& from, DType type, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    out[i] = type == DType::kF32 ? from.as<float>()[i] : ToFloat(from.as<Bf16>()[i]);
  }
  return out;
}

struct Case {
  DType dtype;
  DType y_type;
  int64_t n, k;
};

class MatrixProductTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto [dtype, y_type, n, k] = GetParam();
    weights_ = RoundedTo(dtype, RandomFloats(n * k, 1));
    packed_ = AlignedBuffer(format_.bytes());
    const WeightMatrix w = {WeightType::kF32, reinterpret_cast<std::byte*>(weights_.data()), n, k};
    products_.Pack(w, 0, format_, packed_.data());
  }

  // x: [rows, k]; returns [rows, n].
  std::vector<float> Run(MatrixProducts& products, const std::vector<float>& x, int64_t rows) {
    const auto [dtype, y_type, n, k] = GetParam();
    const int64_t tile = ProductRowTile(rows);
    AlignedBuffer x_buffer(static_cast<size_t>(tile * k) * DTypeBytes(dtype));
    AlignedBuffer y_buffer(static_cast<size_t>(tile * n) * DTypeBytes(y_type));
    std::memset(x_buffer.data(), 0xff, x_buffer.size());  // NaN in the rows past the end
    ConvertFloats(x.data(), rows * k, dtype, x_buffer.data());
    products.Run(format_, packed_.data(), x_buffer.data(), rows, y_type, y_buffer.data());
    return ReadFloats(y_buffer, y_type, rows * n);
  }

  PackedFormat format_{GetParam().dtype, GetParam().n, GetParam().k};
  MatrixProducts products_;
  std::vector<float> weights_;
  AlignedBuffer packed_;
};

TEST_P(MatrixProductTest, EqualsReferenceForEveryRowCount) {
  const auto [dtype, y_type, n, k] = GetParam();
  for (int64_t rows : {1, 5, 16, 17, 64, 100, 256}) {
    const std::vector<float> x = RoundedTo(dtype, RandomFloats(rows * k, 2));
    std::vector<float> want(static_cast<size_t>(rows * n));
    MatrixProductReference(x.data(), weights_.data(), rows, n, k, want.data());
    const std::vector<float> got = Run(products_, x, rows);
    const float scale = std::sqrt(static_cast<float>(k));  // of a sum of k products of normals
    for (int64_t i = 0; i < rows * n; ++i) {
      const float rounding = y_type == DType::kBF16 ? std::abs(want[i]) / 256 : 0;
      ASSERT_NEAR(got[i], want[i], 8e-6f * scale + rounding) << "rows " << rows << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatrixProductTest,
                         testing::Values(Case{DType::kF32, DType::kF32, 576, 576},
                                         Case{DType::kF32, DType::kBF16, 192, 576},
                                         Case{DType::kF32, DType::kF32, 49, 96},
                                         Case{DType::kBF16, DType::kF32, 576, 576},
                                         Case{DType::kBF16, DType::kBF16, 192, 576},
                                         Case{DType::kBF16, DType::kF32, 49, 96}));

}  // namespace
}  // namespace ringfill
