// A worker's connection to its leader, from WELCOME on: makes the rank that it was welcomed as, and
// forms rings and runs steps when told to.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "engine/comm/tcp/listener.h"
#include "engine/comm/tcp/secret.h"
#include "engine/comm/tcp/socket.h"
#include "engine/schedule/plan_check.h"
#include "engine/worker/control_link.h"
#include "engine/worker/control_message.h"
#include "engine/worker/rank.h"
#include "engine/worker/rank_machine.h"

namespace ringfill {

struct SessionParts {
  std::shared_ptr<const Model> model;
  Listener& listener;  // of the ring's connections
  const Secret& secret;
  int threads = 0;           // see WorkerOptions
  int64_t memory_bytes = 0;  // of this machine
  std::shared_ptr<const GpuMachines> gpus;
};

// Run is called by one thread, which becomes the rank's host thread.
class WorkerSession {
 public:
  // What the connection ended with.
  enum class End { kGoodbye, kRefused, kTryAgain, kLost, kDeviceLost };

  WorkerSession(const SessionParts& parts, std::unique_ptr<Connection> connection);
  ~WorkerSession();

  End Run(const JoinMessage& join);
  // Leaves. Any thread.
  void Leave(const std::string& reason);

 private:
  void OnMessage(ControlMessage message);
  void OnEnd(const absl::Status& why);
  // The next message for the rank's thread; nothing at the end of the connection.
  std::optional<ControlMessage> Next();
  // The connection has: what is being done for the leader is of no use any more.
  bool Ended();
  // A reason not to serve this leader; empty: none.
  std::string Object(const JoinMessage& join, const WelcomeMessage& welcome) const;
  // Why the rank's pages have no room here; empty: they have.
  std::string PoolMismatch(const WelcomeMessage& welcome) const;
  // An error is a reason not to serve it either.
  absl::Status Welcome(const JoinMessage& join, const WelcomeMessage& welcome);
  // What a rank is told to do. An error: it failed here.
  absl::Status Do(const ControlMessage& message);
  // After a failure: true when nothing will run here any more; the leader is told so.
  bool LeaveWhenLost(const absl::Status& failed);
  absl::Status Form(const FormMessage& form);
  absl::StatusOr<std::shared_ptr<Communicator>> MakeRing(const FormMessage& form,
                                                         std::vector<int>& missing);
  absl::Status RunStep(const StepMessage& message);
  // What a plan for this rank may ask, whoever wrote it.
  PlanLimits LimitsOfPlans() const;
  bool ShouldStop(const StepPlan& plan, int chunk);
  absl::Status Measure(const MeasureMessage& ask);
  absl::StatusOr<std::vector<double>> MeasureFigures(Duration limit);
  void AbortRing(const absl::Status& status);
  void Watch();

  const SessionParts parts_;
  uint64_t cluster_ = 0;
  Duration heartbeat_timeout_{};
  DType kv_dtype_ = DType::kF32;
  std::unique_ptr<RankMachine> machine_;
  std::unique_ptr<Rank> rank_;  // on the machine

  Mutex mutex_;
  CondVar changed_;
  std::deque<ControlMessage> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  bool goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Run is through
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Communicator> comm_ ABSL_GUARDED_BY(mutex_);
  Device* device_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of machine_
  StopMessage stop_ ABSL_GUARDED_BY(mutex_);
  uint64_t newest_attempt_ ABSL_GUARDED_BY(mutex_) = 0;  // of the FORM that came last
  // Awake: whoever forms a ring is to leave it, for a later attempt or because the leader is gone.
  Waker stop_forming_;

  std::thread watchdog_;
  std::unique_ptr<ControlLink> link_;  // last: its threads use the others
};

}  // namespace ringfill
