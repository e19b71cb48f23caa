// Ranks as threads of this process: one thread each. On the CPU they share the model and its
// expanded weights; on GPUs each has one of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/model/model.h"
#include "engine/stream/host_stream.h"
#include "engine/worker/rank_backend.h"
#include "engine/worker/workers.h"

namespace ringfill {

struct ThreadWorkersOptions {
  CpuModelOptions model;  // ranks and strict are the spec's
  // Tests bring streams that run their operations late, and other transports than `local`.
  HostStreamFactory make_stream = MakeInlineStream;
  std::function<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>(int ranks,
                                                                           uint64_t epoch)>
      make_group;
  // Instead of a CPU backend of all the above. REQUIRES: made for spec.ranks.
  std::function<absl::StatusOr<std::unique_ptr<RankBackend>>(const WorkersSpec& spec)> make_backend;
};

absl::StatusOr<std::unique_ptr<Workers>> MakeThreadWorkers(const WorkersSpec& spec,
                                                           std::shared_ptr<const Model> model,
                                                           const ThreadWorkersOptions& options);

}  // namespace ringfill
