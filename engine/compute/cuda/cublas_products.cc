#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/products.h"
#include "engine/compute/cuda/workspace.h"

namespace ringfill {
namespace {

// Plans kept: forgotten all at once, since steps come in ever new sizes.
constexpr size_t kMostPlans = 1024;

absl::Status BlasStatus(cublasStatus_t status, const char* call, int device) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  (void)cudaGetLastError();
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED ? absl::StatusCode::kResourceExhausted
                                                         : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat(call, " on device ", device, ": ", cublasLtGetStatusString(status), " (",
                         cublasLtGetStatusName(status), ")"));
}

// The largest power of two up to 256 that divides an address.
uint32_t AlignmentOf(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

// Everything that the choice of an algorithm rests on.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, uint32_t,
                       uint32_t, uint32_t>;

Key KeyOf(const Product& p) {
  return {p.rows,
          p.n,
          p.k,
          p.ldw,
          p.ldx,
          p.ldy,
          static_cast<int>(p.y_type),
          AlignmentOf(p.w),
          AlignmentOf(p.x),
          AlignmentOf(p.y)};
}

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) (void)cublasLtMatmulDescDestroy(operation);
  }
};

class CublasProducts final : public Products {
 public:
  CublasProducts(int device, cublasLtHandle_t handle, DeviceBuffer workspace)
      : device_(device), handle_(handle), workspace_(std::move(workspace)) {}
  ~CublasProducts() override {
    plans_.clear();
    (void)cublasLtDestroy(handle_);
  }

  absl::Status Run(const Product& p, cudaStream_t stream) override {
    if (p.rows == 0 || p.n == 0) return absl::OkStatus();
    RF_CHECK(p.k > 0);
    RF_ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(p));
    const float one = 1.0f, zero = 0.0f;
    return BlasStatus(cublasLtMatmul(handle_, plan->operation, &one, p.w, plan->w, p.x, plan->x,
                                     &zero, p.y, plan->y, p.y, plan->y, &plan->algorithm,
                                     workspace_.data(), workspace_.size(), stream),
                      "cublasLtMatmul", device_);
  }

 private:
  absl::StatusOr<const Plan*> PlanOf(const Product& p) {
    const Key key = KeyOf(p);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    RF_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, MakePlan(p));
    if (plans_.size() >= kMostPlans) plans_.clear();
    return (plans_[key] = std::move(plan)).get();
  }

  // cuBLAS counts columns first: y^T [n, rows] = (w^T [k, n])^T x^T [k, rows].
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const Product& p) {
    auto plan = std::make_unique<Plan>();
    RF_RETURN_IF_ERROR(
        BlasStatus(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "cublasLtMatmulDescCreate", device_));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    RF_RETURN_IF_ERROR(
        BlasStatus(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transpose, sizeof(transpose)),
                   "cublasLtMatmulDescSetAttribute", device_));
    const cudaDataType_t y_type = p.y_type == gpu::Element::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    RF_RETURN_IF_ERROR(MakeLayout(CUDA_R_16BF, p.k, p.n, p.ldw, plan->w));
    RF_RETURN_IF_ERROR(MakeLayout(CUDA_R_16BF, p.k, p.rows, p.ldx, plan->x));
    RF_RETURN_IF_ERROR(MakeLayout(y_type, p.n, p.rows, p.ldy, plan->y));
    RF_RETURN_IF_ERROR(ChooseAlgorithm(p, *plan));
    return plan;
  }

  absl::Status MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride,
                          cublasLtMatrixLayout_t& out) {
    return BlasStatus(cublasLtMatrixLayoutCreate(&out, type, static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), stride),
                      "cublasLtMatrixLayoutCreate", device_);
  }

  absl::Status ChooseAlgorithm(const Product& p, Plan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    RF_RETURN_IF_ERROR(BlasStatus(cublasLtMatmulPreferenceCreate(&preference),
                                  "cublasLtMatmulPreferenceCreate", device_));
    absl::Status status;
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      status.Update(
          BlasStatus(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
                     "cublasLtMatmulPreferenceSetAttribute", device_));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_.size()});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.w));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.x));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(p.y));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.y));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    if (status.ok()) {
      status =
          BlasStatus(cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.w, plan.x, plan.y,
                                                    plan.y, preference, 1, &result, &found),
                     "cublasLtMatmulAlgoGetHeuristic", device_);
    }
    (void)cublasLtMatmulPreferenceDestroy(preference);
    RF_RETURN_IF_ERROR(status);
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
      return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm on device ", device_,
                                              " for ", p.rows, " x ", p.n, " x ", p.k));
    }
    plan.algorithm = result.algo;
    return absl::OkStatus();
  }

  const int device_;
  const cublasLtHandle_t handle_;
  const DeviceBuffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace

absl::Status CheckCublas() {
  if (cublasLtGetVersion() != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cuBLASLt is not there (", cublasLtGetStatusString(CUBLAS_STATUS_NOT_INITIALIZED),
      "): install it or set ranks.backend: cpu"));
}

absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts(CudaMemory& memory) {
  const int device = memory.stream().device();
  RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
  cublasLtHandle_t handle = nullptr;
  RF_RETURN_IF_ERROR(BlasStatus(cublasLtCreate(&handle), "cublasLtCreate", device));
  absl::StatusOr<DeviceBuffer> workspace =
      memory.Allocate(kCublasWorkspaceBytes, "product scratch");
  if (!workspace.ok()) {
    (void)cublasLtDestroy(handle);
    return workspace.status();
  }
  return std::make_unique<CublasProducts>(device, handle, *std::move(workspace));
}

}  // namespace ringfill
