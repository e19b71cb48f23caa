// cuBLASLt's calls, passed on to the library that is loaded with the first of them.
//
// Not linked: half a gigabyte that only processes with GPUs need, and its 94 KB of static
// thread-local storage come out of every thread's stack, more than small ones have.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

namespace {

#define RF_STRING(x) #x
#define RF_LIBRARY(major) "libcublasLt.so." RF_STRING(major)

struct Library {
  void* handle = dlopen(RF_LIBRARY(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
  std::string error = handle == nullptr ? dlerror() : "";
};

const Library& TheLibrary() {
  static const auto* const library = new Library;  // for calls up to the process's end
  return *library;
}

template <typename Call>
Call Find(const char* name) {
  void* const handle = TheLibrary().handle;
  return handle == nullptr ? nullptr : reinterpret_cast<Call>(dlsym(handle, name));
}

}  // namespace

#define RF_PASS_ON(result, name, parameters, arguments, otherwise) \
  result CUBLASWINAPI name parameters {                            \
    static const auto call = Find<decltype(&name)>(#name);         \
    return call != nullptr ? call arguments : otherwise;           \
  }
#define RF_PASS_ON_STATUS(name, parameters, arguments) \
  RF_PASS_ON(cublasStatus_t, name, parameters, arguments, CUBLAS_STATUS_NOT_INITIALIZED)

extern "C" {

// 0: the library cannot be loaded, and the text of any status says why.
RF_PASS_ON(size_t, cublasLtGetVersion, (), (), 0)
RF_PASS_ON(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status),
           TheLibrary().error.c_str())
RF_PASS_ON(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status),
           "CUBLAS_STATUS_NOT_INITIALIZED")

RF_PASS_ON_STATUS(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
RF_PASS_ON_STATUS(cublasLtDestroy, (cublasLtHandle_t handle), (handle))

RF_PASS_ON_STATUS(cublasLtMatmulDescCreate,
                  (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale),
                  (desc, compute, scale))
RF_PASS_ON_STATUS(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
RF_PASS_ON_STATUS(cublasLtMatmulDescSetAttribute,
                  (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                   const void* value, size_t bytes),
                  (desc, attribute, value, bytes))

RF_PASS_ON_STATUS(cublasLtMatrixLayoutCreate,
                  (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols,
                   int64_t ld),
                  (layout, type, rows, cols, ld))
RF_PASS_ON_STATUS(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))

RF_PASS_ON_STATUS(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
                  (preference))
RF_PASS_ON_STATUS(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
                  (preference))
RF_PASS_ON_STATUS(cublasLtMatmulPreferenceSetAttribute,
                  (cublasLtMatmulPreference_t preference,
                   cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
                  (preference, attribute, value, bytes))

RF_PASS_ON_STATUS(cublasLtMatmulAlgoGetHeuristic,
                  (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                   cublasLtMatmulPreference_t preference, int wanted,
                   cublasLtMatmulHeuristicResult_t results[], int* found),
                  (handle, desc, a, b, c, d, preference, wanted, results, found))
RF_PASS_ON_STATUS(cublasLtMatmul,
                  (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                   const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                   cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                   cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                   const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                   cudaStream_t stream),
                  (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                   algorithm, workspace, workspace_bytes, stream))

}  // extern "C"
