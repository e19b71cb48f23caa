#include "server/app/ring_workers.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/worker/process_workers.h"
#include "server/text.h"

namespace ringfill {
namespace {

// [ranks] A GPU each: NCCL does not let two ranks share one.
std::vector<int> DevicesOf(const EngineOptions& options) {
  std::vector<int> devices = options.devices;
  if (devices.empty()) {
    devices.resize(static_cast<size_t>(options.ranks));
    std::iota(devices.begin(), devices.end(), 0);
  }
  return devices;
}

}  // namespace

absl::StatusOr<WorkersFactory> MakeWorkersFactory(const Config& config,
                                                  const EngineOptions& options,
                                                  std::shared_ptr<const Model> model,
                                                  WorkerMetrics& metrics) {
  RosterOptions roster;
  roster.listen = config.ring_listen;
  if (!config.ring_secret_file.empty()) {
    absl::StatusOr<Secret> secret = Secret::FromFile(config.ring_secret_file);
    if (!secret.ok()) {
      return absl::InvalidArgumentError(
          Concat("ring.secret_file: ", StdPiece(secret.status().message())));
    }
    roster.secret = *std::move(secret);
  }
  roster.start_workers = config.ring_start_workers;
  // The running program, even when its file has been replaced by a newer one.
  roster.command = {"/proc/self/exe", "worker", "--set", Concat("log.level=", config.log_level)};
  roster.model_path = config.model_path;
  const bool on_gpus = options.backend == Backend::kCuda;
  if (config.ring_start_workers) {
    roster.command.insert(roster.command.end(),
                          {"--set", on_gpus ? "ranks.backend=cuda" : "ranks.backend=cpu"});
    if (on_gpus) roster.devices = DevicesOf(options);
  }
  roster.join_timeout = FromSeconds(config.ring_join_timeout_s);
  roster.most_backoff = FromSeconds(config.ring_max_restart_pause_s);
  roster.first_backoff = std::min(roster.first_backoff, roster.most_backoff);
  roster.heartbeat_timeout = FromSeconds(config.ring_heartbeat_timeout_s);
  ProcessWorkersOptions processes;
  processes.roster = std::move(roster);
  processes.isa = options.isa;
  processes.expanded_weight_bytes = options.expanded_weight_bytes;
  if (on_gpus) {
    processes.gpus = GpuRankOptions{.machines = CudaMachines(),
                                    .kv_memory_bytes = options.kv_memory_bytes,
                                    .kv_memory_fraction = options.kv_memory_fraction,
                                    .max_context_tokens = options.max_context_tokens,
                                    .chunk_tokens = options.chunk_tokens};
    processes.AllowForNccl();
  }
  return [processes, model = std::move(model), &metrics](const WorkersSpec& spec,
                                                         const EngineInfo& info) {
    ProcessWorkersOptions mine = processes;
    mine.dtype = info.dtype;
    mine.kv_dtype = info.kv_dtype;
    mine.page_tokens = info.page_tokens;
    return MakeProcessWorkers(spec, *model, mine, metrics);
  };
}

}  // namespace ringfill
