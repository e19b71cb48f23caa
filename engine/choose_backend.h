// Whether an engine's ranks compute on GPUs.
#pragma once

#include <memory>
#include <optional>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/model/model.h"
#include "engine/worker/cuda_backend.h"

namespace ringfill {

// The GPUs' backend, or nothing: the CPU. With Backend::kAuto what keeps GPUs from being used is
// logged as a warning, unless the build has no support for them; with kCuda it is the error, as
// MakeCudaBackend tells it. REQUIRES: CheckOptions(options) is OK.
absl::StatusOr<std::optional<CudaBackend>> ChooseBackend(std::shared_ptr<const Model> model,
                                                         const EngineOptions& options);

}  // namespace ringfill
