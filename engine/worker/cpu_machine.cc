#include <chrono>
#include <utility>

#include "engine/compute/cpu/cpu_device.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/compute/cuda/workspace.h"
#include "engine/worker/rank_machine.h"

namespace ringfill {
namespace {

class CpuMachine final : public RankMachine {
 public:
  CpuMachine(std::shared_ptr<const Model> model, const WelcomeMessage& welcome,
             const RankThreads& threads, Listener& listener)
      : listener_(listener),
        model_(std::move(model),
               {.dtype = welcome.dtype,
                .kv_dtype = welcome.kv_dtype,
                .isa = welcome.isa,
                .page_tokens = welcome.page_tokens,
                .expanded_weight_bytes = welcome.expanded_weight_bytes,
                .ranks = 1,
                .strict = welcome.strict},
               Clock::Real()),
        device_(model_, {.pages = welcome.pages,
                         .threads = threads.count,
                         .spin_rounds = threads.spin_rounds}) {}

  Device& device() override { return device_; }
  const KvGeometry& geometry() const override { return model_.geometry(); }
  absl::StatusOr<std::unique_ptr<Communicator>> JoinRing(const RingTerms& terms,
                                                         std::vector<int>& missing) override {
    if (!terms.group_id.empty()) {
      return absl::InvalidArgumentError("the ring is one of GPUs, this rank computes on the CPU");
    }
    return FormTcpGroup(listener_, terms.tcp, &missing);
  }
  void StartEpoch() override { model_.StartEpoch(1); }

 private:
  Listener& listener_;
  CpuModel model_;
  CpuDevice device_;
};

}  // namespace

std::unique_ptr<RankMachine> MakeCpuMachine(std::shared_ptr<const Model> model,
                                            const WelcomeMessage& welcome,
                                            const RankThreads& threads, Listener& listener) {
  return std::make_unique<CpuMachine>(std::move(model), welcome, threads, listener);
}

KvGeometry RankGeometry(const ModelConfig& config, RankDevice device, DType kv_dtype,
                        int page_tokens) {
  if (device == RankDevice::kCuda) return CudaKvGeometry(config, page_tokens);
  return KvGeometryOf(config, {.kv_dtype = kv_dtype, .page_tokens = page_tokens});
}

}  // namespace ringfill
