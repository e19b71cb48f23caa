// The body of a worker process: one rank that joins a leader and does what it says.
//
//   WorkerProcess worker(options);
//   const WorkerEnd end = worker.Run();
//
// The process ends with its leader: whatever becomes of the leader, Run returns, or the process
// exits by itself when a step cannot be stopped.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/machine.h"
#include "base/mutex.h"
#include "engine/comm/tcp/listener.h"
#include "engine/comm/tcp/secret.h"
#include "engine/model/model.h"
#include "engine/worker/control_message.h"
#include "engine/worker/rank_machine.h"

namespace ringfill {

class Connection;
class WorkerSession;

struct WorkerOptions {
  std::string leader;  // "host:port"
  int rank = 0;        // wished for
  Secret secret;
  std::string model_path;
  int threads = 0;  // 0: what the leader says, or one a core where it leaves that to us
  // What the leader must have; by default what it has is taken.
  WantedDType dtype = WantedDType::kAny;
  WantedDType kv_dtype = WantedDType::kAny;
  CpuIsa best_isa = DetectCpuIsa();
  // The GPU that it has for a leader who wants one. `gpus` null: none, for the reason `no_gpu`.
  std::shared_ptr<const GpuMachines> gpus = nullptr;
  int device = 0;
  std::string no_gpu = kNoGpuSupport;
  // Where its end of the ring listens; empty: the address that it calls the leader from.
  std::string data_host = {};
  // Not started by its leader: it calls until the leader is there, and calls again when it has lost
  // it, each time for so long.
  bool rejoin = false;
  Duration join_limit = std::chrono::seconds(60);
  // Tests claim others.
  uint32_t version = kControlVersion;
  int64_t memory_bytes = UsableMemory();
  std::string host = HostName();
  std::string boot_id = BootId();
};

// kDeviceLost: only another process can use the GPU again.
enum class WorkerEnd { kGoodbye, kBadModel, kRefused, kLeaderGone, kDeviceLost };

class WorkerProcess {
 public:
  explicit WorkerProcess(WorkerOptions options);
  ~WorkerProcess();

  // Until the leader says goodbye or Stop is called (kGoodbye); says on the log why it ends.
  WorkerEnd Run();
  // Leaves the ring. Any thread.
  void Stop();

 private:
  // One connection, from JOIN to its end; nothing: it is worth trying again.
  std::optional<WorkerEnd> RunSession();
  absl::StatusOr<std::unique_ptr<Connection>> CallLeader();
  JoinMessage MakeJoin(const WorkerGpu& gpu) const;
  WorkerGpu LookAtGpu() const;
  // False when Stop was called meanwhile.
  bool Pause(Duration time);

  const WorkerOptions options_;
  std::shared_ptr<const Model> model_;
  Sha256Digest digest_{};
  std::unique_ptr<Listener> listener_;  // of the ring's connections
  Instant give_up_at_;

  Mutex mutex_;
  CondVar stop_called_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerSession* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace ringfill
