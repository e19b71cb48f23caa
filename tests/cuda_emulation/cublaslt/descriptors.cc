// Handles, layouts, descriptions of products and preferences.
#include <new>

#include "tests/cuda_emulation/cublaslt/context.h"
#include "tests/cuda_emulation/cublaslt/problem.h"
#include "tests/cuda_emulation/runtime/api.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

template <typename T, typename Opaque>
cublasStatus_t Create(Opaque** object, const T& value) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new Opaque{};
  Wrap(value, **object);
  return CUBLAS_STATUS_SUCCESS;
}

// Reads an attribute of exactly this type.
template <typename T>
bool Get(const void* from, size_t bytes, T& to) {
  if (from == nullptr || bytes != sizeof(T)) return false;
  std::memcpy(&to, from, sizeof(T));
  return true;
}

bool PowerOfTwo(uint32_t v) { return v != 0 && (v & (v - 1)) == 0; }

}  // namespace
}  // namespace ringfill::cuda_emulation

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to cuBLASLt

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (CheckDevice() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{CurrentDevice()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return 130000; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "an unknown error";
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  MatrixLayout value;
  value.type = type;
  value.rows = rows;
  value.columns = columns;
  value.stride = stride;
  return Create(layout, value);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, size_t bytes) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto value = Unwrap<MatrixLayout>(*layout);
  bool known = false;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) known = Get(from, bytes, value.batches);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    known = Get(from, bytes, value.batch_stride);
  }
  if (!known) return CUBLAS_STATUS_INVALID_VALUE;
  Wrap(value, *layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  MatmulOperation value;
  value.compute = compute;
  value.scale = scale;
  return Create(description, value);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t bytes) {
  if (description == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto value = Unwrap<MatmulOperation>(*description);
  int32_t operation = 0;
  if (!Get(from, bytes, operation) || operation < CUBLAS_OP_N || operation > CUBLAS_OP_C) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      value.a = static_cast<cublasOperation_t>(operation);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      value.b = static_cast<cublasOperation_t>(operation);
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  Wrap(value, *description);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Create(preference, MatmulPreference{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto value = Unwrap<MatmulPreference>(*preference);
  bool known = false;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    known = Get(from, bytes, value.workspace_bytes);
  }
  const int role = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (role >= kA && role <= kD) {
    uint32_t& alignment = value.alignment[static_cast<size_t>(role)];
    known = Get(from, bytes, alignment) && PowerOfTwo(alignment);
  }
  if (!known) return CUBLAS_STATUS_INVALID_VALUE;
  Wrap(value, *preference);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
