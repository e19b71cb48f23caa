#include "server/app/ring_workers.h"

#include <algorithm>
#include <utility>

#include "engine/worker/process_workers.h"
#include "server/text.h"

namespace ringfill {
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
  roster.join_timeout = FromSeconds(config.ring_join_timeout_s);
  roster.most_backoff = FromSeconds(config.ring_max_restart_pause_s);
  roster.first_backoff = std::min(roster.first_backoff, roster.most_backoff);
  roster.heartbeat_timeout = FromSeconds(config.ring_heartbeat_timeout_s);
  return [roster, model = std::move(model), isa = options.isa,
          expanded = options.expanded_weight_bytes,
          &metrics](const WorkersSpec& spec, const EngineInfo& info) {
    return MakeProcessWorkers(spec, *model,
                              {.roster = roster,
                               .dtype = info.dtype,
                               .kv_dtype = info.kv_dtype,
                               .isa = isa,
                               .page_tokens = info.page_tokens,
                               .expanded_weight_bytes = expanded},
                              metrics);
  };
}

}  // namespace ringfill
