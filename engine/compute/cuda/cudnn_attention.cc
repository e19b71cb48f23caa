// cuDNN's fused attention through its backend interface, whose one SDPA operation (from 9.15 on) is
// the whole graph.
#include <cudnn.h>

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cudnn_support.h"
#include "engine/compute/cuda/fused_attention.h"

namespace ringfill {
namespace {

// Queries carry log2(e), cuDNN exponentiates in base e.
constexpr float kLn2 = 0.69314718055994530942f;
constexpr int64_t kAlignment = 16;  // of all tensors, bytes
// Below it a call and its merge cost what the kernels cost.
constexpr int64_t kLeastKeys = 512;

// Names of the tensors of a call.
enum Tensor : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kStats,
  kScale,
  kPagesK,
  kPagesV,
  kRows,
  kKeys,
};

// UNIMPLEMENTED for what cuDNN does not take, INTERNAL for what went wrong.
absl::Status CudnnStatus(cudnnStatus_t status, std::string_view call) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  (void)cudaGetLastError();
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  const std::string message =
      absl::StrCat(std::string(call), ": ", cudnnGetErrorString(status), ": ", detail.data());
  const int category = status / 1000 * 1000;
  const bool refused = category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
  return refused ? absl::UnimplementedError(message) : absl::InternalError(message);
}

#define RF_RETURN_IF_CUDNN_ERROR(call) RF_RETURN_IF_ERROR(CudnnStatus((call), #call))

template <typename T>
struct TypeOf;
template <>
struct TypeOf<int64_t> {
  static constexpr cudnnBackendAttributeType_t kType = CUDNN_TYPE_INT64;
};
template <>
struct TypeOf<bool> {
  static constexpr cudnnBackendAttributeType_t kType = CUDNN_TYPE_BOOLEAN;
};
template <>
struct TypeOf<cudnnDataType_t> {
  static constexpr cudnnBackendAttributeType_t kType = CUDNN_TYPE_DATA_TYPE;
};
template <>
struct TypeOf<cudnnHandle_t> {
  static constexpr cudnnBackendAttributeType_t kType = CUDNN_TYPE_HANDLE;
};
template <>
struct TypeOf<cudnnBackendHeurMode_t> {
  static constexpr cudnnBackendAttributeType_t kType = CUDNN_TYPE_HEUR_MODE;
};

// One of cuDNN's opaque objects. Setters after a failure do nothing; Finish says what failed.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    status_ =
        CudnnStatus(cudnnBackendCreateDescriptor(type, &object_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (object_ != nullptr) (void)cudnnBackendDestroyDescriptor(object_);
  }
  Descriptor(Descriptor&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), status_(std::move(other.status_)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  cudnnBackendDescriptor_t get() const { return object_; }

  Descriptor& SetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void* values) {
    if (status_.ok()) {
      status_ = CudnnStatus(cudnnBackendSetAttribute(object_, name, type, count, values),
                            absl::StrCat("cudnnBackendSetAttribute ", static_cast<int>(name)));
    }
    return *this;
  }
  template <typename T>
  Descriptor& Set(cudnnBackendAttributeName_t name, T value) {
    return SetArray(name, TypeOf<T>::kType, 1, &value);
  }
  Descriptor& Set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return SetArray(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.object_);
  }
  absl::Status Finish() {
    if (status_.ok()) status_ = CudnnStatus(cudnnBackendFinalize(object_), "cudnnBackendFinalize");
    return status_;
  }

  absl::StatusOr<int64_t> Get(cudnnBackendAttributeName_t name) const {
    int64_t value = 0, count = 0;
    RF_RETURN_IF_CUDNN_ERROR(
        cudnnBackendGetAttribute(object_, name, CUDNN_TYPE_INT64, 1, &count, &value));
    return value;
  }

 private:
  cudnnBackendDescriptor_t object_ = nullptr;
  absl::Status status_;
};

// A tensor with four extents.
Descriptor MakeTensor(Tensor name, cudnnDataType_t type, std::initializer_list<int64_t> extents,
                      std::initializer_list<int64_t> strides) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, int64_t{name})
      .Set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .SetArray(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64,
                static_cast<int64_t>(extents.size()), extents.begin())
      .SetArray(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, static_cast<int64_t>(strides.size()),
                strides.begin())
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  if (name == kScale) tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  return tensor;
}

// The operation for pages that lie `page_stride` bytes apart.
absl::StatusOr<Descriptor> MakeOperation(const FusedAttentionOptions& o, int64_t page_stride) {
  const int64_t entries = o.entries, heads = o.kv_heads, dim = o.head_dim, page = o.page_tokens;
  const int64_t rows = gpu::kFusedRows, table = o.table_pages, stride = page_stride / 2;
  struct Input {
    cudnnBackendAttributeName_t role;
    Descriptor tensor;
  };
  const auto rows_of = [&](Tensor name) {
    return MakeTensor(name, CUDNN_DATA_BFLOAT16, {entries, heads, rows, dim},
                      {heads * rows * dim, rows * dim, dim, 1});
  };
  const auto pages_of = [&](Tensor name) {
    return MakeTensor(name, CUDNN_DATA_BFLOAT16, {o.page_limit, heads, page, dim},
                      {stride, page * dim, dim, 1});
  };
  const auto table_of = [&](Tensor name) {
    return MakeTensor(name, CUDNN_DATA_INT32, {entries, 1, table, 1}, {table, table, 1, 1});
  };
  const auto lengths_of = [&](Tensor name) {
    return MakeTensor(name, CUDNN_DATA_INT32, {entries, 1, 1, 1}, {1, 1, 1, 1});
  };
  std::vector<Input> inputs;
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, rows_of(kQ)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, pages_of(kK)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, pages_of(kV)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, rows_of(kOut)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
                    MakeTensor(kStats, CUDNN_DATA_FLOAT, {entries, heads, rows, 1},
                               {heads * rows, rows, 1, 1})});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
                    MakeTensor(kScale, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1})});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC, table_of(kPagesK)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC, table_of(kPagesV)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, lengths_of(kRows)});
  inputs.push_back({CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, lengths_of(kKeys)});
  Descriptor operation(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  for (Input& input : inputs) {
    RF_RETURN_IF_ERROR(input.tensor.Finish());
    operation.Set(input.role, input.tensor);
  }
  RF_RETURN_IF_ERROR(operation.Finish());
  return operation;
}

// The graph of that operation alone.
absl::StatusOr<Descriptor> MakeGraph(const FusedAttentionOptions& options, int64_t page_stride,
                                     cudnnHandle_t handle) {
  RF_ASSIGN_OR_RETURN(const Descriptor operation, MakeOperation(options, page_stride));
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  if (handle != nullptr) graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  RF_RETURN_IF_ERROR(graph.Finish());
  return graph;
}

// Engines that take the graph, the fastest by cuDNN's reckoning first; at least one. On the GPU of
// the graph's handle, or on `gpu` where that is not null.
absl::StatusOr<std::vector<Descriptor>> FindEngines(const Descriptor& graph,
                                                    const Descriptor* gpu) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (gpu != nullptr) heuristics.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *gpu);
  RF_RETURN_IF_ERROR(heuristics.Finish());
  int64_t offered = 0, taken = 0;
  RF_RETURN_IF_CUDNN_ERROR(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &offered,
                                                    nullptr));
  std::vector<Descriptor> engines;
  std::vector<cudnnBackendDescriptor_t> objects;
  for (int64_t i = 0; i < offered; ++i) {
    objects.push_back(engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  }
  // Those that do not take the graph after all are left out.
  RF_RETURN_IF_CUDNN_ERROR(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &taken,
                                                    objects.data()));
  while (static_cast<int64_t>(engines.size()) > taken) engines.pop_back();
  if (engines.empty()) return absl::UnimplementedError("cuDNN has no engine for it");
  return engines;
}

struct Plan {
  int64_t page_stride;
  int64_t workspace_bytes;
  Descriptor descriptor;
};

absl::StatusOr<Plan> MakePlan(const FusedAttentionOptions& options, int64_t page_stride,
                              cudnnHandle_t handle) {
  RF_ASSIGN_OR_RETURN(const Descriptor graph, MakeGraph(options, page_stride, handle));
  RF_ASSIGN_OR_RETURN(const std::vector<Descriptor> engines, FindEngines(graph, nullptr));
  absl::Status last;
  for (const Descriptor& engine : engines) {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)
        .Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    last = plan.Finish();
    if (!last.ok()) continue;
    RF_ASSIGN_OR_RETURN(const int64_t bytes, plan.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
    return Plan{page_stride, bytes, std::move(plan)};
  }
  return last;
}

class CudnnAttention final : public FusedAttention {
 public:
  static absl::StatusOr<std::unique_ptr<FusedAttention>> Make(
      int device, const FusedAttentionOptions& options) {
    RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
    std::unique_ptr<CudnnAttention> made(new CudnnAttention);
    RF_RETURN_IF_CUDNN_ERROR(cudnnCreate(&made->handle_));
    for (const int64_t stride : options.page_strides) {
      RF_ASSIGN_OR_RETURN(Plan plan, MakePlan(options, stride, made->handle_));
      made->plans_.push_back(std::move(plan));
    }
    return made;
  }
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) (void)cudnnDestroy(handle_);
  }

  std::string name() const override {
    const size_t version = cudnnGetVersion();
    return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  int64_t least_keys() const override { return kLeastKeys; }
  size_t workspace_bytes() const override {
    int64_t most = 0;
    for (const Plan& plan : plans_) most = std::max(most, plan.workspace_bytes);
    return static_cast<size_t>(most);
  }

  absl::Status Run(const FusedCall& call, cudaStream_t stream) override {
    const Plan* plan = nullptr;
    for (const Plan& candidate : plans_) {
      if (candidate.page_stride == call.kv.page_stride) plan = &candidate;
    }
    RF_CHECK(plan != nullptr);
    RF_RETURN_IF_CUDNN_ERROR(cudnnSetStream(handle_, stream));
    float scale = kLn2;
    const std::vector<std::pair<Tensor, const void*>> tensors = {
        {kQ, call.q},          {kK, call.kv.base + call.kv.k_offset},
        {kOut, call.out},      {kV, call.kv.base + call.kv.v_offset},
        {kScale, &scale},      {kStats, call.log_sum_exp},
        {kPagesK, call.pages}, {kPagesV, call.pages},
        {kRows, call.rows},    {kKeys, call.keys}};
    std::vector<int64_t> names;
    std::vector<const void*> addresses;
    for (const auto& [name, address] : tensors) {
      names.push_back(name);
      addresses.push_back(address);
    }
    void* const workspace = call.workspace;
    const auto count = static_cast<int64_t>(names.size());
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.SetArray(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names.data())
        .SetArray(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                  addresses.data())
        .SetArray(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    RF_RETURN_IF_ERROR(pack.Finish());
    return CudnnStatus(cudnnBackendExecute(handle_, plan->descriptor.get(), pack.get()),
                       "cudnnBackendExecute");
  }

 private:
  CudnnAttention() = default;

  cudnnHandle_t handle_ = nullptr;
  std::vector<Plan> plans_;
};

// A GPU as cuDNN describes one, with the limits that all of the supported ones share.
absl::StatusOr<Descriptor> DescribeGpu(const CudnnGpu& gpu) {
  const std::string json = absl::StrCat(
      R"({"deviceVer":)", gpu.capability * 10, R"(,"multiProcessorCount":)", gpu.processors,
      R"(,"maxSharedMemoryPerBlockOptin":)", gpu.shared_bytes,
      R"(,"maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024)",
      R"(,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64])",
      R"(,"regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"warpSize":32)",
      R"(,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"supportCoopLaunch":1)",
      R"(,"cudaDeviceId":0,"deviceId":0,"pciDeviceId":0,"isTccDriver":0,"driverVer":13000)",
      R"(,"totalGlobalMem":85899345920,"l2CacheSize":52428800,"smClockRateKHz":1500000)",
      R"(,"memClockRateKHz":2600000,"deviceName":"GPU"})");
  Descriptor out(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  out.SetArray(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               static_cast<int64_t>(json.size()), json.data());
  RF_RETURN_IF_ERROR(out.Finish());
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FusedAttention>> MakeFusedAttention(
    int device, const FusedAttentionOptions& options) {
  return CudnnAttention::Make(device, options);
}

absl::Status CheckCudnnAttention(const FusedAttentionOptions& options, const CudnnGpu& gpu) {
  RF_ASSIGN_OR_RETURN(const Descriptor described, DescribeGpu(gpu));
  for (const int64_t stride : options.page_strides) {
    RF_ASSIGN_OR_RETURN(const Descriptor graph, MakeGraph(options, stride, nullptr));
    RF_RETURN_IF_ERROR(FindEngines(graph, &described).status());
  }
  return absl::OkStatus();
}

}  // namespace ringfill
