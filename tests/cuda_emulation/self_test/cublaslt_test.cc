// Products through cuBLASLt's calls: every transposition and type against plain loops, and misuse.
#include <cublasLt.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/float_types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/self_test/device_array.h"

namespace ringfill::emulation_test {
namespace {

using cuda_emulation::DefaultOptions;
using cuda_emulation::LastReport;
using cuda_emulation::Options;
using cuda_emulation::Random;
using cuda_emulation::Reset;
using cuda_emulation::SetQuiet;
using testing::HasSubstr;

constexpr size_t kWorkspace = 1 << 20;

size_t ElementBytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// A column-major matrix on the device, whose elements are small integers: exact in every type.
struct Matrix {
  Matrix(cudaDataType_t type_, int64_t rows_, int64_t columns_, int64_t stride_, uint64_t seed)
      : type(type_), rows(rows_), columns(columns_), stride(stride_) {
    Random random(seed);
    std::vector<unsigned char> bytes(static_cast<size_t>(stride * columns) * ElementBytes(type));
    values.resize(static_cast<size_t>(stride * columns));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(random.Below(9)) - 4;
      if (type == CUDA_R_32F) {
        std::memcpy(&bytes[i * 4], &values[i], 4);
      } else {
        const uint16_t bits = type == CUDA_R_16BF ? ToBf16(values[i]).bits : Half(values[i]);
        std::memcpy(&bytes[i * 2], &bits, 2);
      }
    }
    data.emplace(bytes);
    RF_CHECK(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns),
                                        stride) == CUBLAS_STATUS_SUCCESS);
  }
  ~Matrix() { (void)cublasLtMatrixLayoutDestroy(layout); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  // Of the integers above.
  static uint16_t Half(float v) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      if (HalfToFloat(static_cast<uint16_t>(bits)) == v) return static_cast<uint16_t>(bits);
    }
    return 0;
  }
  float At(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(column * stride + row)];
  }
  std::vector<float> Read() const {
    const std::vector<unsigned char> bytes = data->Read();
    std::vector<float> result(values.size());
    for (size_t i = 0; i < result.size(); ++i) {
      uint16_t bits = 0;
      if (type == CUDA_R_32F) {
        std::memcpy(&result[i], &bytes[i * 4], 4);
        continue;
      }
      std::memcpy(&bits, &bytes[i * 2], 2);
      result[i] = type == CUDA_R_16BF ? ToFloat(Bf16{bits}) : HalfToFloat(bits);
    }
    return result;
  }
  void* p() const { return data->data(); }

  cudaDataType_t type;
  int64_t rows, columns, stride;
  std::vector<float> values;
  std::optional<DeviceArray<unsigned char>> data;
  cublasLtMatrixLayout_t layout = nullptr;
};

class CublasLt : public testing::Test {
 protected:
  void SetUp() override {
    SetQuiet(true);
    Options options;
    options.devices = 2;
    options.device_bytes = 64 << 20;
    options.seed = 1;
    Reset(options);
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    workspace_.emplace(kWorkspace);
    Describe(CUBLAS_OP_N, CUBLAS_OP_N);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    const uint64_t bytes = kWorkspace;
    ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(
                  preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
              CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    (void)cublasLtMatmulPreferenceDestroy(preference_);
    (void)cublasLtMatmulDescDestroy(operation_);
    (void)cublasLtDestroy(handle_);
    workspace_.reset();
    SetQuiet(false);
    Reset(DefaultOptions());
  }
  void Describe(cublasOperation_t a, cublasOperation_t b) {
    if (operation_ != nullptr) (void)cublasLtMatmulDescDestroy(operation_);
    ASSERT_EQ(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)),
        CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)),
        CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t Choose(const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d) {
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a.layout, b.layout, c.layout, d.layout,
                                       preference_, 1, &choice_, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    return status;
  }
  cublasStatus_t Run(const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d,
                     size_t workspace_bytes = kWorkspace) {
    return cublasLtMatmul(handle_, operation_, &alpha_, a.p(), a.layout, b.p(), b.layout, &beta_,
                          c.p(), c.layout, d.p(), d.layout, &choice_.algo, workspace_->data(),
                          workspace_bytes, nullptr);
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
  std::optional<DeviceArray<unsigned char>> workspace_;
  float alpha_ = 1, beta_ = 0;
};

TEST_F(CublasLt, TranspositionsTypesAndScales) {
  constexpr int64_t m = 7, n = 5, k = 11;
  for (const auto& [in, out] : {std::pair{CUDA_R_16BF, CUDA_R_32F},
                                {CUDA_R_16BF, CUDA_R_16BF},
                                {CUDA_R_16F, CUDA_R_16F},
                                {CUDA_R_32F, CUDA_R_32F}}) {
    for (int form = 0; form < 4; ++form) {
      const bool ta = form % 2 == 1, tb = form / 2 == 1;
      Describe(ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
      const Matrix a(in, ta ? k : m, ta ? m : k, 16, 1), b(in, tb ? n : k, tb ? k : n, 12, 2);
      const Matrix c(out, m, n, 9, 3), d(out, m, n, 8, 4);
      alpha_ = 2;
      beta_ = form == 0 ? 0 : 3;
      ASSERT_EQ(Choose(a, b, c, d), CUBLAS_STATUS_SUCCESS);
      ASSERT_EQ(Run(a, b, c, d), CUBLAS_STATUS_SUCCESS);
      const std::vector<float> result = d.Read();
      for (int64_t column = 0; column < n; ++column) {
        for (int64_t row = 0; row < m; ++row) {
          float sum = 0;
          for (int64_t i = 0; i < k; ++i) {
            sum += (ta ? a.At(i, row) : a.At(row, i)) * (tb ? b.At(column, i) : b.At(i, column));
          }
          float expected = alpha_ * sum + beta_ * c.At(row, column);
          // Beyond 256, bfloat16 has no odd numbers.
          if (out == CUDA_R_16BF) expected = ToFloat(ToBf16(expected));
          EXPECT_EQ(result[static_cast<size_t>(column * 8 + row)], expected) << "form " << form;
        }
        EXPECT_EQ(result[static_cast<size_t>(column * 8 + 7)], d.At(7, column))
            << "between columns";
      }
    }
  }
}

TEST_F(CublasLt, Batches) {
  const Matrix a(CUDA_R_16BF, 4, 12, 4, 1), b(CUDA_R_16BF, 4, 9, 4, 2), d(CUDA_R_32F, 4, 9, 4, 3);
  // Three products of 4x4 by 4x3.
  const int32_t count = 3;
  const int64_t strides[] = {16, 12, 12};
  const uint64_t columns[] = {4, 3, 3};
  cublasLtMatrixLayout_t layouts[3];
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layouts[i], i == 2 ? CUDA_R_32F : CUDA_R_16BF, 4,
                                         columns[i], 4),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                               &count, sizeof(count)),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(
        cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &strides[i], sizeof(strides[i])),
        CUBLAS_STATUS_SUCCESS);
  }
  ASSERT_EQ(cublasLtMatmul(handle_, operation_, &alpha_, a.p(), layouts[0], b.p(), layouts[1],
                           &beta_, d.p(), layouts[2], d.p(), layouts[2], nullptr,
                           workspace_->data(), kWorkspace, nullptr),
            CUBLAS_STATUS_SUCCESS);
  const std::vector<float> result = d.Read();
  for (int64_t column = 0; column < 9; ++column) {
    for (int64_t row = 0; row < 4; ++row) {
      float sum = 0;
      for (int64_t i = 0; i < 4; ++i) sum += a.At(row, column / 3 * 4 + i) * b.At(i, column);
      EXPECT_EQ(result[static_cast<size_t>(column * 4 + row)], sum);
    }
  }
  for (const cublasLtMatrixLayout_t layout : layouts) (void)cublasLtMatrixLayoutDestroy(layout);
}

TEST_F(CublasLt, ExtentsAndTypesThatDoNotFit) {
  const Matrix a(CUDA_R_16BF, 8, 8, 8, 1), b(CUDA_R_16BF, 8, 8, 8, 2), d(CUDA_R_32F, 8, 8, 8, 3);
  const Matrix longer(CUDA_R_16BF, 9, 8, 9, 4), half(CUDA_R_16F, 8, 8, 8, 5),
      wide(CUDA_R_32F, 8, 9, 8, 6);
  EXPECT_EQ(Choose(a, b, d, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Choose(a, longer, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Choose(a, b, wide, wide), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Choose(a, half, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Choose(a, b, half, half), CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatrixLayout_t narrow = nullptr;  // columns closer than their length
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&narrow, CUDA_R_16BF, 8, 8, 7), CUBLAS_STATUS_SUCCESS);
  int found = 1;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, narrow, b.layout, d.layout,
                                           d.layout, preference_, 1, &choice_, &found),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(found, 0);
  (void)cublasLtMatrixLayoutDestroy(narrow);
}

TEST_F(CublasLt, Misuse) {
  const Matrix a(CUDA_R_16BF, 8, 8, 8, 1), b(CUDA_R_16BF, 8, 8, 8, 2), d(CUDA_R_32F, 8, 8, 8, 3);
  EXPECT_EQ(Run(a, b, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("no heuristic offered"));
  ASSERT_EQ(Choose(a, b, d, d), CUBLAS_STATUS_SUCCESS);
  ASSERT_GT(choice_.workspaceSize, 0u);
  EXPECT_EQ(Run(a, b, d, d, choice_.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("needs a workspace"));
  const auto run_with = [&](const void* p, const void* q, void* r, void* workspace) {
    return cublasLtMatmul(handle_, operation_, &alpha_, p, a.layout, q, b.layout, &beta_, r,
                          d.layout, r, d.layout, &choice_.algo, workspace, kWorkspace, nullptr);
  };
  EXPECT_EQ(run_with(a.p(), static_cast<char*>(b.p()) + 2, d.p(), workspace_->data()),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("B is not aligned to the 256 bytes"));
  EXPECT_EQ(run_with(a.p(), b.p(), d.p(), workspace_->data() + 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("aligned to 16 bytes"));
  EXPECT_EQ(run_with(a.p(), d.p(), d.p(), workspace_->data()), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("overlaps D"));
  const Matrix other(CUDA_R_16BF, 8, 8, 10, 4);
  EXPECT_EQ(Run(a, other, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("another problem"));
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(Run(a, b, d, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THAT(LastReport(), HasSubstr("another device"));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  // Told of a smaller alignment, it takes it.
  const uint32_t alignment = 2;
  ASSERT_EQ(
      cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                           &alignment, sizeof(alignment)),
      CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Choose(a, b, d, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run_with(a.p(), static_cast<char*>(b.p()) + 2, d.p(), workspace_->data()),
            CUBLAS_STATUS_SUCCESS);
  // But then the last column ends beyond the allocation.
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_THAT(LastReport(), HasSubstr("B takes 128 bytes at offset 2, past the end"));
  EXPECT_EQ(Run(a, b, d, d), CUBLAS_STATUS_EXECUTION_FAILED);
}

TEST_F(CublasLt, AttributesAreChecked) {
  const uint32_t odd = 24;
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &odd, sizeof(odd)),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &odd, sizeof(odd)),
            CUBLAS_STATUS_INVALID_VALUE);
  const int32_t operation = 7;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &operation,
                                           sizeof(operation)),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_EQ(cublasLtDestroy(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(CublasLt, QueuedAndWithWorkspaceOverwritten) {
  const Matrix a(CUDA_R_16BF, 8, 8, 8, 1), b(CUDA_R_16BF, 8, 8, 8, 2), d(CUDA_R_32F, 8, 8, 8, 3);
  ASSERT_EQ(cudaMemset(workspace_->data(), 0, kWorkspace), cudaSuccess);
  ASSERT_EQ(Choose(a, b, d, d), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Run(a, b, d, d), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(workspace_->Read()[choice_.workspaceSize - 1], 0xff);
  EXPECT_EQ(workspace_->Read()[choice_.workspaceSize], 0);
}

}  // namespace
}  // namespace ringfill::emulation_test
