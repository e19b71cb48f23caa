// The daemon's ranks as processes: what the configuration says of them.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/worker/worker_roster.h"
#include "server/app/config.h"

namespace ringfill {

// For EngineOptions::workers. Workers are this program once more (ringfilld worker). `metrics`
// outlives the workers. The error names the file of the secret.
absl::StatusOr<WorkersFactory> MakeWorkersFactory(const Config& config,
                                                  const EngineOptions& options,
                                                  std::shared_ptr<const Model> model,
                                                  WorkerMetrics& metrics);

}  // namespace ringfill
