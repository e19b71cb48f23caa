#include "engine/choose_backend.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace ringfill {
namespace {

absl::StatusOr<CudaBackend> Make(std::shared_ptr<const Model> model, const EngineOptions& o) {
  RF_RETURN_IF_ERROR(CheckGpuOptions(o));
  return MakeCudaBackend(std::move(model), {.ranks = o.ranks,
                                            .devices = o.devices,
                                            .page_tokens = o.page_tokens,
                                            .kv_memory_bytes = o.kv_memory_bytes,
                                            .kv_memory_fraction = o.kv_memory_fraction,
                                            .expanded_weight_bytes = o.expanded_weight_bytes,
                                            .chunk_tokens = o.chunk_tokens,
                                            .gather_bytes = o.gather_bytes,
                                            .max_context_tokens = o.max_context_tokens});
}

}  // namespace

absl::StatusOr<std::optional<CudaBackend>> ChooseBackend(std::shared_ptr<const Model> model,
                                                         const EngineOptions& options) {
  if (options.backend == Backend::kCpu || options.workers) return std::nullopt;
  absl::StatusOr<CudaBackend> made = Make(std::move(model), options);
  if (made.ok()) return *std::move(made);
  // GPUs that were named are meant.
  if (options.backend == Backend::kCuda || !options.devices.empty()) return made.status();
  if (!absl::IsUnimplemented(made.status())) {
    Log(LogLevel::kWarning, "ranks compute on the CPU: GPUs cannot be used",
        {{"reason", std::string(made.status().message())}});
  }
  return std::nullopt;
}

}  // namespace ringfill
