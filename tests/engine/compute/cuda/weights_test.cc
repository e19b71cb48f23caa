#include "engine/compute/cuda/kernels/weights.h"

#include <random>
#include <string>
#include <vector>

#include "engine/compute/products/weight_type.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/device_array.h"
#include "tests/engine/compute/cuda/elements.h"
#include "tests/engine/compute/products/weights_for_test.h"

namespace ringfill::gpu {
namespace {

constexpr StoredWeight kStored[] = {StoredWeight::kF32,  StoredWeight::kF16,  StoredWeight::kBF16,
                                    StoredWeight::kQ4_0, StoredWeight::kQ4_1, StoredWeight::kQ8_0};

// The same names in the same order.
WeightType TypeOf(StoredWeight type) { return static_cast<WeightType>(type); }
static_assert(static_cast<int>(StoredWeight::kF32) == static_cast<int>(WeightType::kF32));
static_assert(static_cast<int>(StoredWeight::kF16) == static_cast<int>(WeightType::kF16));
static_assert(static_cast<int>(StoredWeight::kBF16) == static_cast<int>(WeightType::kBF16));
static_assert(static_cast<int>(StoredWeight::kQ4_0) == static_cast<int>(WeightType::kQ4_0));
static_assert(static_cast<int>(StoredWeight::kQ4_1) == static_cast<int>(WeightType::kQ4_1));
static_assert(static_cast<int>(StoredWeight::kQ8_0) == static_cast<int>(WeightType::kQ8_0));

std::vector<std::byte> RandomWeights(WeightType type, int64_t rows, int64_t cols, uint32_t seed) {
  const StoredWeights weights(type, rows, cols, seed, 0);
  const std::byte* first = weights.matrix.data;
  return {first, first + static_cast<size_t>(rows) * WeightRowBytes(type, cols)};
}

std::vector<float> Reference(WeightType type, const std::vector<std::byte>& row, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  ringfill::DequantizeRow(type, row.data(), n, out.data());
  return out;
}

TEST(ExpandWeights, HasTheBitsOfTheCpu) {
  for (const StoredWeight stored : kStored) {
    const WeightType type = TypeOf(stored);
    const int64_t block = GetWeightTypeInfo(type).block_weights;
    for (const int64_t blocks : {0, 1, 7, 8, 9, 63, 64, 131}) {
      for (const uint32_t seed : {1u, 2u, 3u}) {
        const int64_t n = blocks * block;
        const std::vector<std::byte> row = RandomWeights(type, 1, n, seed);
        const DeviceArray<std::byte> in(row);
        for (const Element out_type : {Element::kF32, Element::kBF16, Element::kF16}) {
          const DeviceArray<std::byte> out(static_cast<size_t>(n) * ElementBytes(out_type));
          ASSERT_EQ(ExpandWeights(stored, in.data(), n, out_type, out.data(), nullptr), 0);
          ASSERT_EQ(out.Read(), ToBytes(out_type, Reference(type, row, n)))
              << GetWeightTypeInfo(type).name << " to " << ElementName(out_type) << " n " << n;
        }
      }
    }
  }
}

TEST(ExpandRows, LooksUpTokens) {
  constexpr int64_t kRows = 11;
  const std::vector<int32_t> index = {10, 0, 3, 3, 7};
  for (const StoredWeight stored : kStored) {
    const WeightType type = TypeOf(stored);
    for (const int64_t cols : {int64_t{32}, int64_t{96}, int64_t{576}}) {
      const std::vector<std::byte> matrix = RandomWeights(type, kRows, cols, 4);
      const DeviceArray<std::byte> in(matrix);
      const DeviceArray<int32_t> device_index(index);
      const DeviceArray<float> out(index.size() * static_cast<size_t>(cols));
      ASSERT_EQ(ExpandRows(stored, in.data(), cols, device_index.data(),
                           static_cast<int64_t>(index.size()), Element::kF32, out.data(), nullptr),
                0);
      const std::vector<float> all = Reference(type, matrix, kRows * cols);
      std::vector<float> want;
      for (const int32_t row : index) {
        want.insert(want.end(), all.begin() + row * cols, all.begin() + (row + 1) * cols);
      }
      ASSERT_EQ(out.Read(), want) << GetWeightTypeInfo(type).name;
    }
  }
}

}  // namespace
}  // namespace ringfill::gpu
