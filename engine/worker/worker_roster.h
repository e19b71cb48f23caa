// Who is there: lets workers in at the leader's listener, starts them where that is asked for,
// notices when they go, says how, and starts them anew.
//
// Each rank that is configured is a seat. A worker joins for one seat; what its rank is in an epoch
// is for the caller to say (process_workers.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/comm/tcp/listener.h"
#include "engine/comm/tcp/secret.h"
#include "engine/worker/child_process.h"
#include "engine/worker/control_link.h"
#include "engine/worker/control_message.h"

namespace ringfill {

// Why a worker was lost, as the metric's label.
enum class LossReason { kSignal, kExit, kSilent, kConnection, kHung, kLeft, kLate };
inline constexpr int kLossReasons = 7;

struct WorkerMetrics {
  explicit WorkerMetrics(Metrics& metrics);
  Counter& started;
  std::array<Counter*, kLossReasons> lost;  // by LossReason
  Counter& dead_links;
};

// A worker that has called. Thread-safe.
class WorkerPeer : public std::enable_shared_from_this<WorkerPeer> {
 public:
  int seat() const { return seat_; }
  // "rank 1 (pid 123 on host)".
  std::string Name() const;
  // Containers on several machines may have one host name.
  bool IsOnMachine(const std::string& host, const std::string& boot_id) const;
  const std::string& data_address() const { return join_.data_address; }
  ControlLink& link() { return *link_; }
  bool gone() const { return gone_; }
  const WorkerGpu& gpu() const { return join_.gpu; }

 private:
  friend class WorkerRoster;
  // In the order in which a worker goes through them, but for the last.
  // kJoined: it has said who it is, and awaits its welcome.
  enum class State { kGreeting, kJoined, kWelcomed, kReady, kRefused };

  std::atomic<int> seat_{-1};
  JoinMessage join_;
  ReadyMessage ready_;
  std::atomic<bool> gone_{false};
  // The roster's mutex guards the rest.
  State state_ = State::kGreeting;
  Instant since_;  // of the state; once gone, of its end
  std::optional<LossReason> dropped_;
  absl::Status end_;                   // why the link ended
  std::optional<absl::Status> loss_;   // what became of it, in words
  std::unique_ptr<ControlLink> link_;  // last: its threads use the others
};
using WorkerPeerPtr = std::shared_ptr<WorkerPeer>;

// What a worker said, or that it is gone.
struct WorkerEvent {
  WorkerPeerPtr peer;
  std::optional<ControlMessage> message;
};

struct RosterOptions {
  std::string listen = "127.0.0.1:0";
  std::optional<Secret> secret;  // unset: made here
  bool start_workers = true;
  // How to start one: "--leader A --rank K --secret-fd F --model M" are appended.
  std::vector<std::string> command;
  std::string model_path;
  // [ranks] "--device D" is appended too; empty: it is not.
  std::vector<int> devices = {};
  // The welcome's threads were settled by this machine's cores: workers elsewhere settle their own.
  bool threads_settled_here = false;
  Duration join_timeout = std::chrono::seconds(60);
  Duration heartbeat_timeout = kDefaultHeartbeatTimeout;
  // Before a lost worker is started anew: doubles with each loss up to the most, falls back after a
  // minute of health.
  Duration first_backoff = std::chrono::seconds(1);
  Duration most_backoff = std::chrono::seconds(30);
};

class WorkerRoster {
 public:
  static constexpr Duration kHealthy = std::chrono::minutes(1);
  static constexpr size_t kMaxPeers = 2 * kMaxMembers;

  // `ring`: what every worker is welcomed with, but for its rank; where it is one of GPUs, none is
  // welcomed before Welcome is called. `metrics` outlives the roster.
  // INVALID_ARGUMENT when the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<WorkerRoster>> Start(const RosterOptions& options,
                                                             const WelcomeMessage& ring,
                                                             WorkerMetrics& metrics);
  // Says goodbye to all workers; kills those started here that do not end within a moment.
  ~WorkerRoster();

  const std::string& address() const { return listener_->address(); }

  // Waits until every seat has a worker that has joined, if no more. By seat; the errors are
  // AwaitAll's.
  absl::StatusOr<std::vector<WorkerPeerPtr>> AwaitJoined(Instant deadline);
  // Welcomes those that have joined, and whoever comes from now on, to so many pages. Once.
  void Welcome(int64_t pages);
  // Waits until every seat has a worker that is ready. Otherwise DEADLINE_EXCEEDED, or UNAVAILABLE
  // as soon as one that was started here has died, naming the ranks that are missing and why.
  absl::Status AwaitAll(Instant deadline);
  // Waits until one is ready.
  bool AwaitAny(Instant deadline) const;
  // Those that are ready, by seat; not those that were dropped and are about to go.
  std::vector<WorkerPeerPtr> Ready() const;

  // What members say comes in order; nothing when nothing came in time.
  std::optional<WorkerEvent> NextEvent(Instant deadline);
  // Ends the connection: it is lost for this reason.
  void Drop(const WorkerPeerPtr& peer, LossReason reason, const absl::Status& why);
  // What became of a worker that is gone: UNAVAILABLE naming rank and cause. Waits a moment for a
  // process that is just ending.
  absl::Status HowLost(const WorkerPeer& peer);

 private:
  struct Seat {
    WorkerPeerPtr peer;  // welcomed or ready
    std::unique_ptr<ChildProcess> child;
    std::optional<Instant> start_at;  // when to start one
    Instant started;
    Duration backoff{};
    std::string last;      // what became of the last one
    int64_t last_pid = 0;  // whose end `last` tells
    bool late = false;     // the child is killed because it did not join in time
  };

  WorkerRoster(const RosterOptions& options, const WelcomeMessage& ring, WorkerMetrics& metrics);
  void AcceptLoop();
  void Greet(ProvenSocket socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called by the links' threads, with peers that are in peers_.
  void OnMessage(WorkerPeer& peer, ControlMessage message);
  void OnEnd(WorkerPeer& peer, const absl::Status& why);
  void OnJoin(WorkerPeer& peer, JoinMessage join) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Welcome(WorkerPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnReady(WorkerPeer& peer, const ReadyMessage& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why it cannot have the seat; empty when it can.
  RefusedMessage WhyNoSeat(const JoinMessage& join) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(WorkerPeer& peer, const RefusedMessage& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Says on the log when the ready workers of a machine have more threads than it has cores.
  void CheckThreads(const WorkerPeer& newest) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::vector<WorkerPeerPtr> ReadyPeers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // worker_keeper.cc
  void KeepLoop();
  // Each returns when it wants to be called again at the latest.
  Instant StartDue(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Instant EndLate(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Instant EndLateChildren(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string LateText() const;
  Instant ReportLosses(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteChildExits(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartChild(size_t index, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: too early to say.
  bool ReportLoss(WorkerPeer& peer, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleStart(Seat& seat, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until Missing(least) is empty.
  absl::Status Await(WorkerPeer::State least, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ChildProcess* ChildOf(const WorkerPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has not come so far and why, rank by rank; empty: nobody.
  std::string Missing(WorkerPeer::State least) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RosterOptions options_;
  const Secret secret_;
  WorkerMetrics& metrics_;
  std::unique_ptr<Listener> listener_;

  mutable Mutex mutex_;
  WelcomeMessage ring_ ABSL_GUARDED_BY(mutex_);
  bool welcoming_ ABSL_GUARDED_BY(mutex_);  // false: those that join wait for it
  mutable CondVar changed_;                 // ready workers, losses
  CondVar keeper_wakes_;                    // children and links that ended
  CondVar event_came_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_ ABSL_GUARDED_BY(mutex_) = true;  // until AwaitAll is through
  std::vector<Seat> seats_ ABSL_GUARDED_BY(mutex_);
  std::list<WorkerPeerPtr> peers_ ABSL_GUARDED_BY(mutex_);  // all whose link may run
  std::deque<WorkerEvent> events_ ABSL_GUARDED_BY(mutex_);
  // Ended; destroyed without the mutex, which their threads may wait for.
  std::list<WorkerPeerPtr> ended_peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ChildProcess>> ended_children_ ABSL_GUARDED_BY(mutex_);

  std::thread acceptor_, keeper_;
};

}  // namespace ringfill
