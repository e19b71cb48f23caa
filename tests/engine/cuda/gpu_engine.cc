#include "tests/engine/cuda/gpu_engine.h"

#include <utility>

#include "engine/worker/cuda_backend.h"

namespace ringfill {

std::unique_ptr<EngineRunner> GpuEngine(const std::string& path, EngineOptions options) {
  const std::shared_ptr<const Model> model = LoadModelOrDie(path);
  options.dtype = DType::kBF16;
  options.kv_memory_bytes = 4 << 20;
  options.workers = EngineRunner::ThreadsWith(model, options, [&](ThreadWorkersOptions& threads) {
    threads.make_backend =
        [model, options](const WorkersSpec& spec) -> absl::StatusOr<std::unique_ptr<RankBackend>> {
      RF_ASSIGN_OR_RETURN(CudaBackend made,
                          MakeCudaBackend(model, {.ranks = spec.ranks,
                                                  .page_tokens = options.page_tokens,
                                                  .kv_memory_bytes = options.kv_memory_bytes}));
      return std::move(made.backend);
    };
  });
  return std::make_unique<EngineRunner>(model, LoadTokenizerOrDie(*model), options);
}

}  // namespace ringfill
