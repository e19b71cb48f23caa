#include "engine/compute/products/vector_product.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/compute/products/weights_for_test.h"

namespace ringfill {
namespace {

constexpr float kUntouched = 12345.0f;

// y of a product, [batch, rows], kUntouched where nothing was written.
std::vector<float> Product(const VectorProductArgs& args, CpuIsa isa) {
  std::vector<float> y(static_cast<size_t>(args.batch * args.w->rows), kUntouched);
  VectorProductArgs with_y = args;
  with_y.y = y.data();
  with_y.y_stride = args.w->rows;
  VectorProduct(with_y, isa);
  return y;
}

class VectorProductTest : public testing::TestWithParam<std::tuple<CpuIsa, WeightType>> {
 protected:
  void SetUp() override {
    if (isa_ > DetectCpuIsa()) {
      GTEST_SKIP() << "this machine has no " << CpuIsaName(isa_);
    }
  }

  VectorProductArgs Whole(const WeightMatrix& w, const std::vector<float>& x, int batch) const {
    return {&w, 0, w.rows, 0, w.cols, x.data(), w.cols, nullptr, 0, batch};
  }

  // Every product in the slice equals a sum in double within float32 rounding of its terms, and
  // nothing else is written.
  void ExpectCorrect(const VectorProductArgs& args) {
    const std::vector<float> y = Product(args, isa_);
    const WeightMatrix& w = *args.w;
    for (int b = 0; b < args.batch; ++b) {
      for (int64_t r = 0; r < w.rows; ++r) {
        const float got = y[b * w.rows + r];
        if (r < args.row_begin || r >= args.row_end) {
          ASSERT_EQ(got, kUntouched) << "row " << r << " is outside the slice";
          continue;
        }
        double want = 0, magnitude = 0;
        for (int64_t c = args.col_begin; c < args.col_end; ++c) {
          const double term = WeightAt(w, r, c) * args.x[b * args.x_stride + c];
          want += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(got, want, 2e-6 * magnitude + 1e-30) << "entry " << b << " row " << r;
      }
    }
  }

  const CpuIsa isa_ = std::get<0>(GetParam());
  const WeightType type_ = std::get<1>(GetParam());
};

TEST_P(VectorProductTest, EqualsDoubleSumsForEveryBatch) {
  const StoredWeights stored(type_, 11, 576, 1, 32);
  for (int batch : {1, 2, 3, 4, 5, 7, 33}) {
    SCOPED_TRACE(batch);
    const std::vector<float> x = RandomFloats(batch * 576, 2);
    ExpectCorrect(Whole(stored.matrix, x, batch));
  }
}

TEST_P(VectorProductTest, TakesWeightsAtAnyAddress) {
  const std::vector<float> x = RandomFloats(96 * 5, 2);
  for (size_t misalignment : {0, 2, 32, 62}) {
    const StoredWeights stored(type_, 5, 96, 3, misalignment);
    ExpectCorrect(Whole(stored.matrix, x, 1));
    ExpectCorrect(Whole(stored.matrix, x, 5));
  }
}

TEST_P(VectorProductTest, TakesSlicesOfRowsAndColumns) {
  const StoredWeights stored(type_, 13, 2048, 4, 32);
  for (int batch : {1, 3, 6}) {
    const std::vector<float> x = RandomFloats(batch * 2048, 5);
    for (const auto& [row_begin, row_end] : {std::pair{0, 13}, {3, 4}, {2, 9}, {5, 5}, {12, 13}}) {
      for (const auto& [col_begin, col_end] :
           {std::pair{0, 2048}, {32, 64}, {96, 1760}, {64, 64}}) {
        VectorProductArgs args = Whole(stored.matrix, x, batch);
        args.row_begin = row_begin;
        args.row_end = row_end;
        args.col_begin = col_begin;
        args.col_end = col_end;
        ExpectCorrect(args);
      }
    }
  }
}

TEST_P(VectorProductTest, ReadsOnlyItsOwnColumns) {
  const StoredWeights stored(type_, 4, 96, 6, 32);
  std::vector<float> x(96 * 2, std::numeric_limits<float>::quiet_NaN());
  for (int b : {0, 1}) {
    for (int c = 32; c < 64; ++c) x[b * 96 + c] = 1.0f + static_cast<float>(c);
  }
  for (int batch : {1, 2}) {
    VectorProductArgs args = Whole(stored.matrix, x, batch);
    args.col_begin = 32;
    args.col_end = 64;
    ExpectCorrect(args);
  }
}

TEST_P(VectorProductTest, BitsDoNotDependOnRowRangeOrBatch) {
  constexpr int kBatch = 60;
  const StoredWeights stored(type_, 23, 1632, 7, 32);
  const std::vector<float> x = RandomFloats(kBatch * 1632, 8);
  const std::vector<float> whole = Product(Whole(stored.matrix, x, kBatch), isa_);
  for (int batch : {1, 2, 3, 4, 5, 7, 33}) {
    for (int first : {0, 20}) {
      for (int64_t step : {1, 4, 10, 23}) {
        for (int64_t row = 0; row < 23; row += step) {
          VectorProductArgs args = Whole(stored.matrix, x, batch);
          args.x += first * 1632;
          args.row_begin = row;
          args.row_end = std::min<int64_t>(23, row + step);
          const std::vector<float> y = Product(args, isa_);
          for (int b = 0; b < batch; ++b) {
            ASSERT_EQ(std::memcmp(&y[b * 23 + row], &whole[(first + b) * 23 + row],
                                  static_cast<size_t>(args.row_end - row) * sizeof(float)),
                      0)
                << "batch " << batch << " entry " << b << " rows from " << row << " by " << step;
          }
        }
      }
    }
  }
}

TEST_P(VectorProductTest, TakesAnyNumberOfColumns) {
  const int block = GetWeightTypeInfo(type_).block_weights;
  for (int64_t n : {1, 5, 31, 33, 100}) {
    const int64_t cols = n * block;
    const StoredWeights stored(type_, 6, cols, 9, 2);
    const std::vector<float> x = RandomFloats(cols * 7, 10);
    for (int batch : {1, 2, 7}) ExpectCorrect(Whole(stored.matrix, x, batch));
  }
}

INSTANTIATE_TEST_SUITE_P(All, VectorProductTest,
                         testing::Combine(testing::ValuesIn(kAllCpuIsas),
                                          testing::ValuesIn(kAllWeightTypes)),
                         [](const auto& info) {
                           return std::string(CpuIsaName(std::get<0>(info.param))) + "_" +
                                  NameOf(std::get<1>(info.param));
                         });

TEST(VectorProductReferenceTest, EqualsHandMadeSums) {
  const float weights[] = {1, 2, 3, -1, 0.5f, 4};
  const WeightMatrix w = {WeightType::kF32, reinterpret_cast<const std::byte*>(weights), 2, 3};
  const float x[] = {1, 10, 100, 2, 0, -1};
  float y[4] = {};
  VectorProductReference({&w, 0, 2, 0, 3, x, 3, y, 2, 2});
  EXPECT_EQ(y[0], 321.0f);
  EXPECT_EQ(y[1], 404.0f);
  EXPECT_EQ(y[2], -1.0f);
  EXPECT_EQ(y[3], -6.0f);
}

}  // namespace
}  // namespace ringfill
