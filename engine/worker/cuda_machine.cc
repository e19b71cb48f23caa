#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/comm/local.h"
#include "engine/comm/nccl/nccl_group.h"
#include "engine/comm/tcp/socket.h"
#include "engine/compute/cuda/cuda_device.h"
#include "engine/compute/cuda/memory_plan.h"
#include "engine/compute/cuda/products.h"
#include "engine/worker/rank_machine.h"

namespace ringfill {
namespace {

bool IsAwake(const Waker* waker) {
  pollfd polled = PolledStop(waker);
  return PollUntil({&polled, 1}, Instant());
}

class CudaMachine final : public RankMachine {
 public:
  CudaMachine(std::unique_ptr<CudaDevice> device, const KvGeometry& geometry)
      : device_(std::move(device)), geometry_(geometry) {}

  Device& device() override { return *device_; }
  const KvGeometry& geometry() const override { return geometry_; }

  absl::StatusOr<std::unique_ptr<Communicator>> JoinRing(const RingTerms& terms,
                                                         std::vector<int>&) override {
    NcclRankOptions options;
    options.rank = terms.tcp.rank;
    options.ranks = static_cast<int>(terms.tcp.members.size());
    // One rank alone has nobody to talk to.
    if (options.ranks == 1) return std::move(MakeLocalGroup(1).front());
    if (terms.group_id.size() != options.id.size()) {
      return absl::InvalidArgumentError("the ring is one of CPUs, this rank computes on a GPU");
    }
    std::memcpy(options.id.data(), terms.group_id.data(), options.id.size());
    options.device = device_->gpu().index;
    options.deadline = terms.tcp.deadline;
    options.stopped = [stop = terms.tcp.stop] { return IsAwake(stop); };
    return FormNcclRank(options);
  }
  void StartEpoch() override {}

 private:
  const std::unique_ptr<CudaDevice> device_;
  const KvGeometry geometry_;
};

class CudaMachinesOfProcess final : public GpuMachines {
 public:
  absl::StatusOr<WorkerGpu> Look(int device) const override {
    RF_ASSIGN_OR_RETURN(const CudaGpu gpu, FindGpu(device));
    return WorkerGpu{.device = gpu.index,
                     .name = Describe(gpu),
                     .place = gpu.bus,
                     .free_bytes = static_cast<int64_t>(gpu.free_bytes)};
  }

  absl::StatusOr<std::unique_ptr<RankMachine>> Make(
      std::shared_ptr<const Model> model, const WelcomeMessage& welcome, const WorkerGpu& gpu,
      const std::function<bool()>& stopped) const override {
    if (welcome.ranks > 1) RF_RETURN_IF_ERROR(CheckNccl());
    RF_RETURN_IF_ERROR(CudaDevice::CheckModel(model->config()));
    RF_ASSIGN_OR_RETURN(const CudaMemoryPlan plan, Plan(*model, welcome, gpu));
    CudaRankOptions rank;
    RF_ASSIGN_OR_RETURN(rank.gpu, FindGpu(gpu.device));
    rank.pages = welcome.pages;
    rank.page_tokens = welcome.page_tokens;
    rank.weights = plan.weights;
    rank.stopped = stopped;
    rank.make_products = MakeCublasProducts;
    const KvGeometry geometry = CudaKvGeometry(model->config(), welcome.page_tokens);
    RF_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device,
                        CudaDevice::Make(std::move(model), rank));
    return std::make_unique<CudaMachine>(std::move(device), geometry);
  }

  absl::StatusOr<std::string> NewGroupId() const override {
    static_assert(sizeof(NcclId) == kGroupIdBytes);
    RF_ASSIGN_OR_RETURN(const NcclId id, NewNcclId());
    return std::string(reinterpret_cast<const char*>(id.data()), id.size());
  }

 private:
  // As the leader planned it (gpu_plan.h), of what JOIN said.
  static absl::StatusOr<CudaMemoryPlan> Plan(const Model& model, const WelcomeMessage& welcome,
                                             const WorkerGpu& gpu) {
    const auto page =
        static_cast<int64_t>(CudaKvGeometry(model.config(), welcome.page_tokens).PageBytes());
    // More than there are need not be counted.
    const int64_t pages = std::min(welcome.pages, gpu.free_bytes / page + 1);
    absl::StatusOr<CudaMemoryPlan> plan =
        PlanCudaMemory(model, {.device = gpu.name,
                               .free_bytes = static_cast<size_t>(gpu.free_bytes),
                               .ranks = welcome.ranks,
                               .page_tokens = welcome.page_tokens,
                               .kv_memory_bytes = pages * page * welcome.ranks,
                               .expanded_weight_bytes = welcome.expanded_weight_bytes,
                               .chunk_tokens = welcome.chunk_tokens,
                               .gather_bytes = static_cast<size_t>(welcome.gather_bytes)});
    if (plan.ok()) return plan;
    return absl::Status(plan.status().code(), absl::StrCat("each rank keeps ", welcome.pages,
                                                           " KV pages: ", plan.status().message()));
  }
};

}  // namespace

std::shared_ptr<const GpuMachines> CudaMachines() {
  return std::make_shared<CudaMachinesOfProcess>();
}

}  // namespace ringfill
