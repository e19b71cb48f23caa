#include "engine/comm/tcp/tcp.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "engine/comm/tcp/mesh.h"
#include "engine/comm/transfer.h"

namespace ringfill {
namespace {

// How long an all-gather looks out for its peers before it sleeps: longer than ranks of a decode
// step drift apart, far shorter than a step.
constexpr Duration kSpin = std::chrono::microseconds(50);
// A call that nobody answers may have been swallowed by a network that works again.
constexpr int kTries = 4;
constexpr Duration kRetryPause = std::chrono::milliseconds(10);

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(int rank, std::vector<std::unique_ptr<Link>> links, LinkWatch watch)
      : spin_(links.size() <= std::thread::hardware_concurrency() ? kSpin : Duration(0)),
        mesh_(rank, std::move(links), waker_, trace_, std::move(watch)),
        lane_([this] { RunLane(); }) {}

  ~TcpCommunicator() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      Kick();
    }
    lane_.join();
  }

  int rank() const override { return mesh_.rank(); }
  int size() const override { return mesh_.size(); }

  TransferPtr StartExchange(ExchangeArgs args) override {
    RF_CHECK(args.to >= 0 && args.to < size() && args.from >= 0 && args.from < size());
    RF_CHECK(args.send.empty() || args.recv.empty() ||
             (args.to == rank()) == (args.from == rank()));
    return Start(std::move(args), size() == 1, last_exchange_);
  }

  TransferPtr StartAllGather(AllGatherArgs args) override {
    RF_CHECK(args.recv.size() == args.send.size() * size());
    return Start(std::move(args), true, last_gather_);
  }

  void Abort(absl::Status status) override {
    RF_CHECK(!status.ok());
    MutexLock lock(&mutex_);
    if (!abort_status_.ok()) return;
    abort_status_ = std::move(status);
    abort_requested_ = true;
    Kick();
  }

  void TraceTo(TraceBuffer* trace) override { trace_ = trace; }

 private:
  struct Submitted {
    std::variant<ExchangeArgs, AllGatherArgs> args;
    std::shared_ptr<HostTransfer> transfer;
  };

  // Runs on the calling thread where that is asked for and nothing else moves, else on the lane.
  template <typename Args>
  TransferPtr Start(Args args, bool here, TransferPtr& last) {
    auto transfer = std::make_shared<HostTransfer>();
    here = here && AllDone(args.after);
    {
      MutexLock lock(&mutex_);
      while (here && driving_ && LaneIsLeaving()) parked_.Wait(&mutex_);
      if (!abort_status_.ok()) {
        transfer->Complete(abort_status_, {});
        return transfer;
      }
      if (!here || driving_ || !submitted_.empty()) {
        submitted_.push_back({std::move(args), transfer});
        last = transfer;
        Kick();
        return transfer;
      }
      driving_ = true;
    }
    mesh_.Add(std::move(args), transfer);
    while (!transfer->done()) {
      mesh_.Turn(spin_);
      MutexLock lock(&mutex_);
      ShareAborts();
    }
    MutexLock lock(&mutex_);
    ShareAborts();
    driving_ = false;
    if (HasWork()) work_.Signal();
    return transfer;
  }

  // All that was given to the lane is done; it is about to see that.
  bool LaneIsLeaving() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return abort_status_.ok() && submitted_.empty() &&
           (last_exchange_ == nullptr || last_exchange_->done()) &&
           (last_gather_ == nullptr || last_gather_->done());
  }

  void RunLane() {
    MutexLock lock(&mutex_);
    for (;;) {
      for (Instant now; now = Clock::Real().Now(), !MayDrive(now);) {
        // Whoever else drives the mesh tends its links.
        work_.WaitUntil(&mutex_, driving_ ? now + kBeatPeriod : mesh_.tend_at());
      }
      driving_ = true;
      do {
        const std::deque<Submitted> submitted = std::exchange(submitted_, {});
        ShareAborts();
        const bool stopping = stopping_;
        mutex_.Unlock();
        for (const Submitted& next : submitted) {
          std::visit([&](const auto& args) { mesh_.Add(args, next.transfer); }, next.args);
        }
        if (stopping && mesh_.busy()) {
          mesh_.Abort(absl::CancelledError("the communicator was destroyed"));
        }
        if (mesh_.busy()) {
          mesh_.Turn(Duration(0));
        } else {
          mesh_.Tend();
        }
        mutex_.Lock();
        ShareAborts();
        if (stopping && !mesh_.busy()) return;
      } while (HasWork());
      driving_ = false;
      parked_.SignalAll();
    }
  }

  // The lane's: nobody else drives, and there is something to do.
  bool MayDrive(Instant now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !driving_ && (HasWork() || now >= mesh_.tend_at());
  }

  // REQUIRES: the caller drives the mesh, or nobody does.
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || abort_requested_ || !submitted_.empty() || mesh_.busy();
  }

  void Kick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (driving_) {
      waker_.Wake();
    } else {
      work_.Signal();
    }
  }

  // REQUIRES: the caller drives the mesh.
  void ShareAborts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (std::exchange(abort_requested_, false)) mesh_.Abort(abort_status_);
    if (abort_status_.ok()) abort_status_ = mesh_.abort_status();
  }

  const Duration spin_;
  Waker waker_;
  std::atomic<TraceBuffer*> trace_{nullptr};
  TransferPtr last_exchange_, last_gather_;  // given to the lane; the calling thread's

  Mutex mutex_;
  CondVar work_, parked_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool abort_requested_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_status_ ABSL_GUARDED_BY(mutex_);
  std::deque<Submitted> submitted_ ABSL_GUARDED_BY(mutex_);

  Mesh mesh_;  // of the thread that set driving_
  std::thread lane_;
};

absl::Status CheckPeer(const PeerClaims& peer, int rank, size_t ranks, const std::string& address) {
  if (peer.rank == static_cast<uint32_t>(rank) && peer.ranks == ranks) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(address, " is rank ", peer.rank, " of ",
                                                    peer.ranks, ", expected rank ", rank, " of ",
                                                    ranks));
}

absl::Status StaleEpoch(const PeerClaims& peer, uint64_t epoch) {
  return absl::FailedPreconditionError(absl::StrCat("rank ", peer.rank, " is at epoch ", peer.epoch,
                                                    ", this group is of epoch ", epoch));
}

// How much an error tells: that somebody is missing, that the call was given up, or more.
constexpr int kForGood = 3;
int Weight(const absl::Status& status) {
  if (status.ok()) return 0;
  if (SomebodyIsMissing(status)) return 1;
  return absl::IsCancelled(status) ? 2 : kForGood;
}

absl::StatusOr<ProvenSocket> CallPeer(int rank, const TcpGroupOptions& options,
                                      const Credentials& credentials, const Waker& stop) {
  const std::string& address = options.members[rank];
  const Duration one_try = (options.deadline - Clock::Real().Now()) / kTries;
  for (;;) {
    const Instant limit = std::min(options.deadline, Clock::Real().Now() + one_try);
    absl::StatusOr<ProvenSocket> called = ConnectProvenRetrying(address, credentials, limit, &stop);
    if (SomebodyIsMissing(called.status()) && limit < options.deadline) continue;
    RF_ASSIGN_OR_RETURN(ProvenSocket peer, std::move(called));
    if (peer.peer.epoch > options.epoch) return StaleEpoch(peer.peer, options.epoch);
    if (peer.peer.epoch == options.epoch) {
      RF_RETURN_IF_ERROR(CheckPeer(peer.peer, rank, options.members.size(), address));
      return peer;
    }
    if (Clock::Real().Now() + kRetryPause >= options.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " is still at epoch ", peer.peer.epoch));
    }
    RF_RETURN_IF_ERROR(PauseUntil(Clock::Real().Now() + kRetryPause, &stop));
  }
}

// Accepts the ranks below.
absl::Status AcceptPeers(Listener& listener, const TcpGroupOptions& options,
                         const Credentials& credentials, const Waker& stop,
                         std::vector<std::optional<ProvenSocket>>& peers) {
  int missing = options.rank;
  while (missing > 0) {
    absl::StatusOr<ProvenSocket> peer = listener.Accept(credentials, options.deadline, &stop);
    if (absl::IsDeadlineExceeded(peer.status())) {
      return absl::DeadlineExceededError(absl::StrCat(
          missing, " of the ", options.rank, " ranks below ", options.rank, " have not called"));
    }
    RF_RETURN_IF_ERROR(peer.status());
    const PeerClaims& claims = peer->peer;
    if (claims.epoch < options.epoch) continue;  // closes it
    if (claims.epoch > options.epoch) return StaleEpoch(claims, options.epoch);
    // Not for us: the caller sees that too, and knows whose address led it here.
    if (claims.rank >= static_cast<uint32_t>(options.rank)) continue;
    RF_RETURN_IF_ERROR(CheckPeer(claims, claims.rank, options.members.size(), peer->address));
    // Who calls again has given up the call before.
    if (!peers[claims.rank].has_value()) --missing;
    peers[claims.rank] = *std::move(peer);
  }
  return absl::OkStatus();
}

// The higher ranks are called all at once, so that one that does not answer leaves time for the
// others. An error that says more than that somebody is missing ends all calls, and is the answer.
// `statuses`: [ranks] what came of each call, of accepting at the own rank.
absl::Status ConnectAll(Listener& listener, const TcpGroupOptions& options,
                        const Credentials& credentials,
                        std::vector<std::optional<ProvenSocket>>& peers,
                        std::vector<absl::Status>& statuses) {
  const size_t ranks = options.members.size();
  Waker own_stop;
  Waker& stop = options.stop != nullptr ? *options.stop : own_stop;
  const auto note = [&](size_t rank, const absl::Status& status) {
    statuses[rank] = status;
    if (!status.ok() && !SomebodyIsMissing(status)) stop.Wake();
  };
  std::vector<std::thread> calls;
  for (size_t rank = static_cast<size_t>(options.rank) + 1; rank < ranks; ++rank) {
    calls.emplace_back([&, rank] {
      absl::StatusOr<ProvenSocket> peer =
          CallPeer(static_cast<int>(rank), options, credentials, stop);
      note(rank, peer.status());
      if (peer.ok()) peers[rank] = *std::move(peer);
    });
  }
  note(static_cast<size_t>(options.rank), AcceptPeers(listener, options, credentials, stop, peers));
  for (std::thread& call : calls) call.join();
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (Weight(status) > Weight(first)) first = status;
  }
  return first;
}

}  // namespace

bool SomebodyIsMissing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

absl::StatusOr<std::unique_ptr<Communicator>> FormTcpGroup(Listener& listener,
                                                           const TcpGroupOptions& options,
                                                           std::vector<int>* missing) {
  const int ranks = static_cast<int>(options.members.size());
  RF_CHECK(options.rank >= 0 && options.rank < ranks && options.secret != nullptr);
  Credentials credentials;
  credentials.secret = options.secret;
  credentials.own = {PeerRole::kRank, options.cluster, options.epoch,
                     static_cast<uint32_t>(options.rank), static_cast<uint32_t>(ranks)};
  credentials.peer_role = PeerRole::kRank;
  std::vector<std::optional<ProvenSocket>> peers(ranks);
  std::vector<absl::Status> statuses(ranks);
  const absl::Status connected = ConnectAll(listener, options, credentials, peers, statuses);
  for (int rank = 0; missing != nullptr && rank < ranks; ++rank) {
    if (rank == options.rank) continue;
    const bool named = SomebodyIsMissing(connected) ? !peers[rank].has_value()
                                                    : Weight(statuses[rank]) == kForGood;
    if (named) missing->push_back(rank);
  }
  RF_RETURN_IF_ERROR(connected);
  std::vector<std::unique_ptr<Link>> links(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (peers[rank].has_value()) links[rank] = std::make_unique<Link>(*std::move(peers[rank]));
  }
  return std::make_unique<TcpCommunicator>(options.rank, std::move(links),
                                           LinkWatch{.silence_limit = options.silence_limit,
                                                     .begins = options.deadline,
                                                     .on_dead = options.on_dead_link});
}

}  // namespace ringfill
