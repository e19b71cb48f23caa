// The choice of an algorithm, and the product.
#include <algorithm>
#include <string>

#include "tests/cuda_emulation/cublaslt/context.h"
#include "tests/cuda_emulation/cublaslt/problem.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

// "Must be 16B aligned", says the manual.
constexpr uintptr_t kWorkspaceAlignment = 16;
// What the first algorithm asks for, if it may.
constexpr uint64_t kLikedWorkspace = 64 * 1024;
constexpr const char* kNames[] = {"A", "B", "C", "D"};

bool Fill(MatmulProblem& problem, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  if (operation == nullptr) return false;
  problem.operation = Unwrap<MatmulOperation>(*operation);
  const cublasLtMatrixLayout_t layouts[] = {a, b, c, d};
  for (size_t i = 0; i < kMatrices; ++i) {
    if (layouts[i] == nullptr) return false;
    problem.layout[i] = Unwrap<MatrixLayout>(*layouts[i]);
  }
  return true;
}

MatmulAlgorithm Algorithm(const MatmulProblem& problem, const MatmulPreference& preference,
                          uint64_t workspace_bytes) {
  return {kAlgorithmMark, problem.Digest(), workspace_bytes, preference.alignment};
}

struct Call {
  MatmulProblem problem;
  float alpha, beta;
  std::array<const void*, kMatrices> data;
  void* workspace;
  uint64_t workspace_bytes;
};

const std::byte* Begin(const Call& call, size_t i) {
  return static_cast<const std::byte*>(call.data[i]);
}
const std::byte* End(const Call& call, size_t i) {
  const MatrixLayout& layout = call.problem.layout[i];
  return Begin(call, i) +
         (layout.batches - 1) * layout.batch_stride * static_cast<int64_t>(layout.ElementBytes()) +
         layout.Bytes();
}

cublasStatus_t Refuse(const std::string& why) {
  Runtime::Get().Report("cublasLtMatmul: " + why);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t CheckPointers(const Call& call, const MatmulAlgorithm& algorithm) {
  for (size_t i = 0; i < kMatrices; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(call.data[i]);
    if (call.data[i] == nullptr) return Refuse(std::string(kNames[i]) + " is null");
    if (address % call.problem.layout[i].ElementBytes() != 0 ||
        address % algorithm.alignment[i] != 0) {
      return Refuse(std::string(kNames[i]) + " is not aligned to the " +
                    std::to_string(algorithm.alignment[i]) +
                    " bytes that the algorithm was chosen for");
    }
    if (i == kD || (i == kC && call.data[kC] == call.data[kD])) continue;
    if (Begin(call, i) < End(call, kD) && Begin(call, kD) < End(call, i)) {
      return Refuse(std::string(kNames[i]) + " overlaps D");
    }
  }
  const MatrixLayout &c = call.problem.layout[kC], &d = call.problem.layout[kD];
  if (call.data[kC] == call.data[kD] && (c.stride != d.stride || c.type != d.type)) {
    return Refuse("C and D are one matrix with two layouts");
  }
  return CUBLAS_STATUS_SUCCESS;
}

Outcome Run(const Call& call, int device) {
  const DeviceMemory& memory = DeviceMemory::Get();
  for (size_t i = 0; i < kMatrices; ++i) {
    if (i == kC && call.beta == 0) continue;
    const auto bytes = static_cast<size_t>(End(call, i) - Begin(call, i));
    if (memory.Holds(device, call.data[i], bytes)) continue;
    return {cudaErrorIllegalAddress, std::string("cublasLtMatmul: ") + kNames[i] + " takes " +
                                         std::to_string(bytes) + " bytes " +
                                         memory.Problem(device, call.data[i], bytes)};
  }
  if (call.workspace_bytes > 0) {
    if (!memory.Holds(device, call.workspace, call.workspace_bytes)) {
      return {cudaErrorIllegalAddress,
              "cublasLtMatmul: the workspace is " +
                  memory.Problem(device, call.workspace, call.workspace_bytes)};
    }
    // Whoever else keeps something there sees it.
    std::memset(call.workspace, 0xff, call.workspace_bytes);
  }
  Multiply(call.problem, call.alpha, call.data[kA], call.data[kB], call.beta, call.data[kC],
           const_cast<void*>(call.data[kD]));
  return {};
}

}  // namespace
}  // namespace ringfill::cuda_emulation

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to cuBLASLt

extern "C" {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  MatmulProblem problem;
  if (returned == nullptr || results == nullptr || requested <= 0 || preference == nullptr ||
      !Fill(problem, operation, a, b, c, d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returned = 0;
  if (const cublasStatus_t status = problem.Check(); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto liked = Unwrap<MatmulPreference>(*preference);
  // The best of them wants a workspace, the other none.
  for (const uint64_t bytes : {std::min(kLikedWorkspace, liked.workspace_bytes), uint64_t{0}}) {
    if (*returned == requested || (*returned == 1 && results[0].workspaceSize == bytes)) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    Wrap(Algorithm(problem, liked, bytes), result.algo);
    result.workspaceSize = bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Call call{};
  if (alpha == nullptr || beta == nullptr ||
      !Fill(call.problem, operation, a_layout, b_layout, c_layout, d_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (const cublasStatus_t status = call.problem.Check(); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  // Without one it looks for one itself, which takes a workspace if it may.
  MatmulPreference preference;
  preference.workspace_bytes = workspace_bytes;
  const MatmulAlgorithm algorithm =
      algo != nullptr ? Unwrap<MatmulAlgorithm>(*algo)
                      : Algorithm(call.problem, preference,
                                  std::min<uint64_t>(workspace_bytes, kLikedWorkspace));
  if (algorithm.mark != kAlgorithmMark) return Refuse("an algorithm that no heuristic offered");
  if (algorithm.problem != call.problem.Digest()) {
    return Refuse("the algorithm was chosen for another problem");
  }
  if (algorithm.workspace_bytes > workspace_bytes) {
    return Refuse("the algorithm needs a workspace of " +
                  std::to_string(algorithm.workspace_bytes) + " bytes, there are " +
                  std::to_string(workspace_bytes));
  }
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return Refuse("the workspace is not aligned to 16 bytes");
  }
  std::memcpy(&call.alpha, alpha, sizeof(float));
  std::memcpy(&call.beta, beta, sizeof(float));
  call.data = {a, b, c, d};
  call.workspace = workspace;
  call.workspace_bytes = algorithm.workspace_bytes;
  if (const cublasStatus_t status = CheckPointers(call, algorithm);
      status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  const int device = Runtime::Get().DeviceOfStream(stream);
  if (device != handle->device) return Refuse("the stream is of another device than the handle");
  // The library looks at CUDA's last error after its launch, whoever left it there.
  if (const cudaError_t left = cudaPeekAtLastError(); left != cudaSuccess) {
    Runtime::Get().Report(std::string("an error of a call before was left to cublasLtMatmul: ") +
                          cudaGetErrorName(left));
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const cudaError_t error = Runtime::Get().Enqueue(
      stream, MakeFunctionTask("a product", [call, device] { return Run(call, device); }));
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
