#include "engine/worker/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/comm/local.h"
#include "engine/comm/nccl/nccl_group.h"
#include "engine/compute/cuda/cuda_device.h"
#include "engine/compute/cuda/memory_plan.h"
#include "engine/compute/cuda/products.h"

namespace ringfill {
namespace {

// NCCL looks for paths between all GPUs when it starts.
constexpr Duration kFormLimit = std::chrono::minutes(2);

class GpuBackend final : public RankBackend {
 public:
  GpuBackend(std::shared_ptr<const Model> model, std::vector<CudaRankOptions> ranks)
      : model_(std::move(model)),
        ranks_(std::move(ranks)),
        geometry_(CudaKvGeometry(model_->config(), ranks_.front().page_tokens)) {}

  std::string_view name() const override { return "cuda"; }
  const ModelConfig& config() const override { return model_->config(); }
  const KvGeometry& geometry() const override { return geometry_; }

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int rank) override {
    RF_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                        CudaDevice::Make(model_, ranks_[static_cast<size_t>(rank)]));
    return device;
  }
  absl::StatusOr<Ends> MakeGroup(const std::vector<int>& members, uint64_t,
                                 const std::function<bool()>& while_waiting) override {
    // One rank alone has nobody to talk to.
    if (members.size() == 1) return MakeLocalGroup(1);
    std::vector<int> devices;
    for (const int rank : members) devices.push_back(ranks_[static_cast<size_t>(rank)].gpu.index);
    return MakeNcclGroup(
        devices, {.deadline = Clock::Real().Now() + kFormLimit, .while_waiting = while_waiting});
  }
  void StartEpoch(int) override {}

 private:
  const std::shared_ptr<const Model> model_;
  const std::vector<CudaRankOptions> ranks_;  // by first number
  const KvGeometry geometry_;
};

CudaMemoryOptions MemoryOptions(const CudaBackendOptions& o, const CudaGpu& gpu) {
  return {.device = Describe(gpu),
          .free_bytes = gpu.free_bytes,
          .ranks = o.ranks,
          .page_tokens = o.page_tokens,
          .kv_memory_bytes = o.kv_memory_bytes,
          .kv_memory_fraction = o.kv_memory_fraction,
          .expanded_weight_bytes = o.expanded_weight_bytes,
          .chunk_tokens = o.chunk_tokens,
          .gather_bytes = o.gather_bytes,
          .max_context_tokens = o.max_context_tokens};
}

}  // namespace

absl::StatusOr<CudaBackend> MakeCudaBackend(std::shared_ptr<const Model> model,
                                            const CudaBackendOptions& options) {
  RF_ASSIGN_OR_RETURN(const std::vector<CudaGpu> all, ListGpus());
  RF_ASSIGN_OR_RETURN(std::vector<CudaGpu> gpus, PickGpus(all, options.devices, options.ranks));
  RF_RETURN_IF_ERROR(CheckCublas());
  if (options.ranks > 1) RF_RETURN_IF_ERROR(CheckNccl());
  RF_RETURN_IF_ERROR(CudaDevice::CheckModel(model->config()));
  CudaBackend out;
  std::vector<CudaRankOptions> ranks;
  for (CudaGpu& gpu : gpus) {
    RF_RETURN_IF_ERROR(LookAtMemory(gpu));
    RF_ASSIGN_OR_RETURN(const CudaMemoryPlan plan,
                        PlanCudaMemory(*model, MemoryOptions(options, gpu)));
    CudaRankOptions rank;
    rank.gpu = gpu;
    rank.pages = plan.pages;
    rank.page_tokens = options.page_tokens;
    rank.weights = plan.weights;
    rank.make_products = MakeCublasProducts;
    ranks.push_back(std::move(rank));
    absl::StrAppend(&out.description, out.description.empty() ? "" : ", ", Describe(gpu));
  }
  // Every rank has as many.
  out.pages_per_rank =
      std::min_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return a.pages < b.pages;
      })->pages;
  for (CudaRankOptions& rank : ranks) rank.pages = out.pages_per_rank;
  out.backend = std::make_unique<GpuBackend>(std::move(model), std::move(ranks));
  return out;
}

}  // namespace ringfill
