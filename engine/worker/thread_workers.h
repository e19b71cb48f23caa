// Ranks as threads of this process: one thread each, which share the model and its expanded
// weights.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/model/model.h"
#include "engine/stream/host_stream.h"
#include "engine/worker/workers.h"

namespace ringfill {

struct ThreadWorkersOptions {
  CpuModelOptions model;  // ranks and strict are the spec's
  // Tests bring streams that run their operations late.
  std::function<HostStreamFactory(int rank)> streams;
};

absl::StatusOr<std::unique_ptr<Workers>> MakeThreadWorkers(const WorkersSpec& spec,
                                                           std::shared_ptr<const Model> model,
                                                           const ThreadWorkersOptions& options);

}  // namespace ringfill
