#include "tests/engine/cuda/gpu_engine.h"

#include <utility>

#include "engine/worker/cuda_backend.h"

namespace ringfill {
namespace {

class WatchedBackend final : public RankBackend {
 public:
  WatchedBackend(std::unique_ptr<RankBackend> backend, std::function<void(uint64_t)> before_forming)
      : backend_(std::move(backend)), before_forming_(std::move(before_forming)) {}

  std::string_view name() const override { return backend_->name(); }
  const ModelConfig& config() const override { return backend_->config(); }
  const KvGeometry& geometry() const override { return backend_->geometry(); }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int rank) override {
    return backend_->MakeDevice(rank);
  }
  absl::StatusOr<Ends> MakeGroup(const std::vector<int>& members, uint64_t epoch,
                                 const std::function<bool()>& while_waiting) override {
    if (before_forming_) before_forming_(epoch);
    return backend_->MakeGroup(members, epoch, while_waiting);
  }
  void StartEpoch(int ranks) override { backend_->StartEpoch(ranks); }

 private:
  const std::unique_ptr<RankBackend> backend_;
  const std::function<void(uint64_t)> before_forming_;
};

}  // namespace

std::unique_ptr<EngineRunner> GpuEngine(const std::string& path, EngineOptions options,
                                        std::function<void(uint64_t)> before_forming) {
  const std::shared_ptr<const Model> model = LoadModelOrDie(path);
  options.dtype = DType::kBF16;
  options.kv_memory_bytes = 4 << 20;
  options.workers = EngineRunner::ThreadsWith(model, options, [&](ThreadWorkersOptions& threads) {
    threads.make_backend =
        [model, options,
         before_forming](const WorkersSpec& spec) -> absl::StatusOr<std::unique_ptr<RankBackend>> {
      RF_ASSIGN_OR_RETURN(CudaBackend made,
                          MakeCudaBackend(model, {.ranks = spec.ranks,
                                                  .page_tokens = options.page_tokens,
                                                  .kv_memory_bytes = options.kv_memory_bytes}));
      return std::make_unique<WatchedBackend>(std::move(made.backend), before_forming);
    };
  });
  return std::make_unique<EngineRunner>(model, LoadTokenizerOrDie(*model), options);
}

}  // namespace ringfill
