// Ranks as processes, on this host or others: the leader's side. This process holds no rank; it
// sends plans, forwards stops and progress, and collects results. When a worker is lost, the others
// are told to stop waiting for it at once, and the next Reform goes on without it or with the one
// that has come in its place. When two of them cannot reach each other, one is left out for a while
// (link_faults.h) and keeps its connection.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/model/model.h"
#include "engine/worker/link_faults.h"
#include "engine/worker/rank_machine.h"
#include "engine/worker/worker_roster.h"
#include "engine/worker/workers.h"

namespace ringfill {

struct GpuRankOptions {
  std::shared_ptr<const GpuMachines> machines;  // null: this build has none
  int64_t kv_memory_bytes = 0;                  // this and below: see GpuPlanOptions
  double kv_memory_fraction = 0.9;
  int64_t max_context_tokens = 0;
  int64_t chunk_tokens = 2048;
};

struct ProcessWorkersOptions {
  RosterOptions roster;
  // What all ranks compute with; a worker whose CPU lacks the instruction set is refused.
  DType dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  CpuIsa isa = DetectCpuIsa();
  int page_tokens = 64;
  int64_t expanded_weight_bytes = 0;
  // Ranks have a GPU each; the types are bf16 then.
  std::optional<GpuRankOptions> gpus = std::nullopt;
  LinkFaults::Options link_faults = {};
  // The first attempt to form a ring, connections between each two of its ranks. Somebody who does
  // not answer costs this once. Doubles up to the most each time that it was too short.
  Duration form_timeout = std::chrono::seconds(2);
  Duration most_form_timeout = std::chrono::seconds(6);
  // From one attempt to the next with the same workers, however soon it fails.
  Duration least_attempt = std::chrono::milliseconds(250);
  // No attempt of a Reform, but for the first, begins later.
  Duration reform_limit = std::chrono::seconds(12);
  // Those of `form_timeout`, `most_form_timeout` and `reform_limit` are for connections; NCCL looks
  // for paths between all GPUs first and takes seconds. `least_attempt` bounds what failed ones
  // leave behind: see NcclId.
  void AllowForNccl() {
    form_timeout = std::chrono::seconds(30);
    most_form_timeout = reform_limit = std::chrono::minutes(1);
    least_attempt = std::chrono::seconds(10);
  }
  // Until ranks that could not form a ring are tried again, while nothing else asks for one;
  // doubles each time, up to half a minute.
  Duration first_retry = std::chrono::seconds(1);
  // For tests of the links between ranks: where the worker of seat `from` finds the listener of
  // seat `to`, which is at `address`. Empty: there.
  std::function<std::string(int from, int to, const std::string& address)> route = {};
};

// Waits until all workers have joined, and forms the ring of epoch 1. The error says which ranks
// are missing and why, or with GPUs RESOURCE_EXHAUSTED what does not fit on which; UNIMPLEMENTED
// when this build cannot lead ranks on GPUs. With GPUs, spec.pages_per_rank is not read:
// gpu_pages() says them. `metrics` outlives the workers; of the model only its description is read.
absl::StatusOr<std::unique_ptr<Workers>> MakeProcessWorkers(const WorkersSpec& spec,
                                                            const Model& model,
                                                            const ProcessWorkersOptions& options,
                                                            WorkerMetrics& metrics);

}  // namespace ringfill
