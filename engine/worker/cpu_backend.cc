#include <utility>

#include "engine/comm/local.h"
#include "engine/compute/cpu/cpu_device.h"
#include "engine/worker/rank_backend.h"

namespace ringfill {
namespace {

class CpuBackend final : public RankBackend {
 public:
  CpuBackend(std::shared_ptr<const Model> model, const CpuBackendOptions& options)
      : options_(options), model_(std::move(model), options.model, *options.clock) {}

  std::string_view name() const override { return "cpu"; }
  const ModelConfig& config() const override { return model_.config(); }
  const KvGeometry& geometry() const override { return model_.geometry(); }

  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int) override {
    return std::make_unique<CpuDevice>(model_,
                                       CpuDeviceOptions{.pages = options_.pages_per_rank,
                                                        .threads = options_.threads_per_rank,
                                                        .spin_rounds = options_.spin_rounds,
                                                        .make_stream = options_.make_stream});
  }
  absl::StatusOr<Ends> MakeGroup(const std::vector<int>& members, uint64_t epoch,
                                 const std::function<bool()>&) override {
    const auto ranks = static_cast<int>(members.size());
    if (options_.make_group) return options_.make_group(ranks, epoch);
    return MakeLocalGroup(ranks, *options_.clock);
  }
  void StartEpoch(int ranks) override { model_.StartEpoch(ranks); }

 private:
  const CpuBackendOptions options_;
  CpuModel model_;
};

}  // namespace

std::unique_ptr<RankBackend> MakeCpuBackend(std::shared_ptr<const Model> model,
                                            const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(std::move(model), options);
}

}  // namespace ringfill
