#include "engine/worker/worker_roster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/machine.h"
#include "engine/worker/result_codec.h"

namespace ringfill {
namespace {

constexpr Duration kAcceptTurn = std::chrono::seconds(1);
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr Duration kGoodbye = std::chrono::milliseconds(500);
constexpr Duration kLastWords = std::chrono::seconds(2);  // for children to end by themselves
constexpr Duration kHowLostPatience = std::chrono::seconds(2);
constexpr size_t kMaxEvents = 4096;
constexpr size_t kMaxPeerMessage = kMaxResultBytes + kMaxControlBytes;

}  // namespace

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : started(metrics.AddCounter("ringfill_workers_started_total",
                                 "Worker processes that the daemon started")),
      dead_links(metrics.AddCounter("ringfill_dead_links_total",
                                    "Links between two ranks that were found dead")) {
  constexpr const char* kReasons[kLossReasons] = {"signal", "exit", "silent", "connection",
                                                  "hung",   "left", "late"};
  for (size_t i = 0; i < lost.size(); ++i) {
    lost[i] = &metrics.AddCounter("ringfill_workers_lost_total", "Worker processes lost",
                                  {{"reason", kReasons[i]}});
  }
}

bool WorkerPeer::IsOnMachine(const std::string& host, const std::string& boot_id) const {
  return join_.host == host && join_.boot_id == boot_id;
}

std::string WorkerPeer::Name() const {
  return absl::StrCat("rank ", seat_.load(), " (pid ", join_.pid, " on ", join_.host, ")");
}

absl::StatusOr<std::unique_ptr<WorkerRoster>> WorkerRoster::Start(const RosterOptions& options,
                                                                  const WelcomeMessage& ring,
                                                                  WorkerMetrics& metrics) {
  std::unique_ptr<WorkerRoster> roster(new WorkerRoster(options, ring, metrics));
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Bind(options.listen);
  if (!listener.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("ring.listen: ", listener.status().message()));
  }
  roster->listener_ = *std::move(listener);
  roster->acceptor_ = std::thread([r = roster.get()] { r->AcceptLoop(); });
  roster->keeper_ = std::thread([r = roster.get()] { r->KeepLoop(); });
  return roster;
}

WorkerRoster::WorkerRoster(const RosterOptions& options, const WelcomeMessage& ring,
                           WorkerMetrics& metrics)
    : options_(options),
      secret_(options.secret.has_value() ? *options.secret : Secret::Random()),
      metrics_(metrics),
      ring_(ring),
      welcoming_(ring.device == RankDevice::kCpu),
      seats_(static_cast<size_t>(ring.ranks)) {
  if (!options_.start_workers) return;
  for (Seat& seat : seats_) {
    seat.backoff = options_.first_backoff;
    seat.start_at = Instant();
  }
}

WorkerRoster::~WorkerRoster() {
  std::list<WorkerPeerPtr> peers;
  std::vector<Seat> seats;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    keeper_wakes_.SignalAll();
  }
  if (listener_ != nullptr) listener_->Close();
  if (acceptor_.joinable()) acceptor_.join();
  if (keeper_.joinable()) keeper_.join();
  {
    MutexLock lock(&mutex_);
    peers.swap(peers_);
    peers.splice(peers.end(), ended_peers_);
    seats.swap(seats_);
    events_.clear();
  }
  // Their threads find no seats any more.
  for (const WorkerPeerPtr& peer : peers) {
    peer->link().Finish(ByeMessage{"the leader stops"}, absl::CancelledError("stopping"), kGoodbye);
  }
  const Instant end = Clock::Real().Now() + kLastWords;
  for (const Seat& seat : seats) {
    if (seat.child != nullptr) seat.child->AwaitExit(end);
  }
}

absl::StatusOr<std::vector<WorkerPeerPtr>> WorkerRoster::AwaitJoined(Instant deadline) {
  MutexLock lock(&mutex_);
  RF_RETURN_IF_ERROR(Await(WorkerPeer::State::kJoined, deadline));
  std::vector<WorkerPeerPtr> joined;
  for (const Seat& seat : seats_) joined.push_back(seat.peer);
  return joined;
}

void WorkerRoster::Welcome(int64_t pages) {
  MutexLock lock(&mutex_);
  ring_.pages = pages;
  welcoming_ = true;
  for (const Seat& seat : seats_) {
    if (seat.peer != nullptr && seat.peer->state_ == WorkerPeer::State::kJoined) {
      Welcome(*seat.peer);
    }
  }
}

absl::Status WorkerRoster::AwaitAll(Instant deadline) {
  MutexLock lock(&mutex_);
  RF_RETURN_IF_ERROR(Await(WorkerPeer::State::kReady, deadline));
  starting_ = false;
  return absl::OkStatus();
}

absl::Status WorkerRoster::Await(WorkerPeer::State least, Instant deadline) {
  while (true) {
    const std::string missing = Missing(least);
    if (missing.empty()) return absl::OkStatus();
    const bool one_died = std::any_of(seats_.begin(), seats_.end(), [](const Seat& seat) {
      return seat.child == nullptr && seat.peer == nullptr && !seat.start_at.has_value();
    });
    if (options_.start_workers && one_died) return absl::UnavailableError(missing);
    if (!changed_.WaitUntil(&mutex_, deadline) && Clock::Real().Now() >= deadline) {
      const std::string still = Missing(least);
      if (!still.empty()) return absl::DeadlineExceededError(still);
    }
  }
}

bool WorkerRoster::AwaitAny(Instant deadline) const {
  MutexLock lock(&mutex_);
  while (ReadyPeers().empty()) {
    if (!changed_.WaitUntil(&mutex_, deadline)) break;
  }
  return !ReadyPeers().empty();
}

std::vector<WorkerPeerPtr> WorkerRoster::Ready() const {
  MutexLock lock(&mutex_);
  return ReadyPeers();
}

std::vector<WorkerPeerPtr> WorkerRoster::ReadyPeers() const {
  std::vector<WorkerPeerPtr> ready;
  for (const Seat& seat : seats_) {
    if (seat.peer != nullptr && seat.peer->state_ == WorkerPeer::State::kReady &&
        !seat.peer->dropped_.has_value()) {
      ready.push_back(seat.peer);
    }
  }
  return ready;
}

std::optional<WorkerEvent> WorkerRoster::NextEvent(Instant deadline) {
  MutexLock lock(&mutex_);
  while (events_.empty()) {
    if (!event_came_.WaitUntil(&mutex_, deadline)) break;
  }
  if (events_.empty()) return std::nullopt;
  WorkerEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void WorkerRoster::Drop(const WorkerPeerPtr& peer, LossReason reason, const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (peer->gone_) return;
  peer->dropped_ = reason;
  peer->link_->Close(why);
}

absl::Status WorkerRoster::HowLost(const WorkerPeer& peer) {
  const Instant deadline = Clock::Real().Now() + kHowLostPatience;
  MutexLock lock(&mutex_);
  while (!peer.loss_.has_value()) {
    if (!changed_.WaitUntil(&mutex_, deadline)) break;
  }
  if (peer.loss_.has_value()) return *peer.loss_;
  return absl::UnavailableError(absl::StrCat(peer.Name(), " was lost"));
}

void WorkerRoster::AcceptLoop() {
  Credentials credentials;
  credentials.secret = &secret_;
  credentials.own.role = PeerRole::kLeader;
  credentials.peer_role = PeerRole::kWorker;
  while (true) {
    absl::StatusOr<ProvenSocket> caller =
        listener_->Accept(credentials, Clock::Real().Now() + kAcceptTurn);
    MutexLock lock(&mutex_);
    if (stopping_) return;
    if (caller.ok()) {
      // More than this many that know the secret are no ring.
      if (peers_.size() < kMaxPeers) Greet(*std::move(caller));
    } else if (!absl::IsDeadlineExceeded(caller.status())) {
      Log(LogLevel::kWarning, "cannot accept workers", {{"status", caller.status().ToString()}});
      keeper_wakes_.WaitUntil(&mutex_, Clock::Real().Now() + kAcceptPause);
    }
  }
}

void WorkerRoster::Greet(ProvenSocket socket) {
  auto peer = std::make_shared<WorkerPeer>();
  Connection::Options limits;
  limits.max_message_bytes = kMaxPeerMessage;
  peer->since_ = Clock::Real().Now();
  WorkerPeer* const raw = peer.get();
  peer->link_ = std::make_unique<ControlLink>(
      std::make_unique<Connection>(std::move(socket), limits), options_.heartbeat_timeout,
      ControlLink::Handler{
          .on_message = [this, raw](ControlMessage m) { OnMessage(*raw, std::move(m)); },
          .on_end = [this, raw](const absl::Status& why) { OnEnd(*raw, why); }});
  peers_.push_back(peer);
  peer->link_->Start();
}

void WorkerRoster::OnMessage(WorkerPeer& peer, ControlMessage message) {
  using State = WorkerPeer::State;
  MutexLock lock(&mutex_);
  if (stopping_ || peer.state_ == State::kRefused) return;
  if (const auto* bye = std::get_if<ByeMessage>(&message)) {
    peer.dropped_ = LossReason::kLeft;
    return peer.link_->Close(absl::UnavailableError(absl::StrCat("it left: ", bye->reason)));
  }
  if (const auto* refused = std::get_if<RefusedMessage>(&message)) {
    Log(LogLevel::kError, "a worker refuses the leader",
        {{"rank", peer.seat_.load()}, {"pid", peer.join_.pid}, {"reason", refused->reason}});
    peer.dropped_ = LossReason::kConnection;
    return peer.link_->Close(absl::UnavailableError(absl::StrCat("it refused: ", refused->reason)));
  }
  if (auto* join = std::get_if<JoinMessage>(&message);
      join != nullptr && peer.state_ == State::kGreeting) {
    return OnJoin(peer, std::move(*join));
  }
  if (const auto* ready = std::get_if<ReadyMessage>(&message);
      ready != nullptr && peer.state_ == State::kWelcomed) {
    return OnReady(peer, *ready);
  }
  if (peer.state_ != State::kReady || events_.size() >= kMaxEvents) {
    peer.dropped_ = LossReason::kConnection;
    return peer.link_->Close(absl::DataLossError(absl::StrCat(
        "it sent ", ControlName(static_cast<uint16_t>(message.index() + 1)), " out of turn")));
  }
  events_.push_back({peer.shared_from_this(), std::move(message)});
  event_came_.SignalAll();
}

void WorkerRoster::OnEnd(WorkerPeer& peer, const absl::Status& why) {
  MutexLock lock(&mutex_);
  peer.gone_ = true;
  peer.end_ = why;
  peer.since_ = Clock::Real().Now();
  const auto seat = static_cast<size_t>(peer.seat_);
  if (peer.seat_ >= 0 && seat < seats_.size() && seats_[seat].peer.get() == &peer) {
    seats_[seat].peer.reset();
  }
  if (!stopping_ && peer.state_ == WorkerPeer::State::kReady) {
    events_.push_back({peer.shared_from_this(), std::nullopt});
    event_came_.SignalAll();
  }
  changed_.SignalAll();
  keeper_wakes_.SignalAll();
}

RefusedMessage WorkerRoster::WhyNoSeat(const JoinMessage& join) {
  if (join.rank >= ring_.ranks) {
    return {false, absl::StrCat("there is no rank ", join.rank, ": the ring has ", ring_.ranks)};
  }
  const Seat& seat = seats_[static_cast<size_t>(join.rank)];
  if (seat.peer != nullptr) {
    return {true, absl::StrCat("rank ", join.rank, " is taken by pid ", seat.peer->join_.pid,
                               " on ", seat.peer->join_.host)};
  }
  // NCCL takes two ranks on one GPU for a mistake too, but says so less clearly.
  for (const Seat& other : seats_) {
    if (ring_.device == RankDevice::kCpu || other.peer == nullptr) continue;
    const WorkerPeer& its = *other.peer;
    if (!its.IsOnMachine(join.host, join.boot_id) || its.gpu().place != join.gpu.place) continue;
    return {false, absl::StrCat(its.Name(), " computes on the same GPU, ", join.gpu.name,
                                ": give each worker of a machine its own --device")};
  }
  if (options_.start_workers && (seat.child == nullptr || seat.child->pid() != join.pid)) {
    return {false, "this leader starts its workers itself (ring.start_workers)"};
  }
  return {};
}

void WorkerRoster::OnJoin(WorkerPeer& peer, JoinMessage join) {
  peer.join_ = std::move(join);
  const std::string mismatch = JoinMismatch(ring_, peer.join_);
  const RefusedMessage why =
      mismatch.empty() ? WhyNoSeat(peer.join_) : RefusedMessage{false, mismatch};
  if (!why.reason.empty()) return Refuse(peer, why);
  peer.seat_ = peer.join_.rank;
  seats_[static_cast<size_t>(peer.join_.rank)].peer = peer.shared_from_this();
  peer.state_ = WorkerPeer::State::kJoined;
  peer.since_ = Clock::Real().Now();
  if (welcoming_) Welcome(peer);
  changed_.SignalAll();
  keeper_wakes_.SignalAll();
}

void WorkerRoster::Welcome(WorkerPeer& peer) {
  peer.state_ = WorkerPeer::State::kWelcomed;
  peer.since_ = Clock::Real().Now();
  WelcomeMessage welcome = ring_;
  welcome.rank = peer.join_.rank;
  if (options_.threads_settled_here && !peer.IsOnMachine(HostName(), BootId())) {
    welcome.threads = 0;
  }
  peer.link_->Send(welcome);
  keeper_wakes_.SignalAll();
}

void WorkerRoster::Refuse(WorkerPeer& peer, const RefusedMessage& why) {
  Log(LogLevel::kWarning, "a worker was refused",
      {{"rank", peer.join_.rank},
       {"pid", peer.join_.pid},
       {"host", peer.join_.host},
       {"reason", why.reason}});
  if (!why.try_again && peer.join_.rank < ring_.ranks) {
    Seat& seat = seats_[static_cast<size_t>(peer.join_.rank)];
    seat.last = absl::StrCat("the last worker was refused: ", why.reason);
    seat.last_pid = 0;  // its process may still end in a way of its own
  }
  peer.state_ = WorkerPeer::State::kRefused;
  peer.since_ = Clock::Real().Now();
  // It closes the connection when it has read this; otherwise the keeper does.
  peer.link_->Send(why);
  keeper_wakes_.SignalAll();
}

void WorkerRoster::OnReady(WorkerPeer& peer, const ReadyMessage& ready) {
  peer.ready_ = ready;
  peer.state_ = WorkerPeer::State::kReady;
  Log(LogLevel::kInfo, "a worker has joined",
      {{"rank", peer.seat_.load()},
       {"pid", peer.join_.pid},
       {"host", peer.join_.host},
       {"address", peer.join_.data_address},
       {"threads", ready.threads},
       {"cores", ready.cores},
       {"gpu", ring_.device == RankDevice::kCuda ? peer.join_.gpu.name : "none"}});
  if (!options_.start_workers && ring_.device == RankDevice::kCpu) CheckThreads(peer);
  changed_.SignalAll();
}

void WorkerRoster::CheckThreads(const WorkerPeer& newest) const {
  int threads = 0;
  for (const WorkerPeerPtr& peer : ReadyPeers()) {
    if (peer->IsOnMachine(newest.join_.host, newest.join_.boot_id)) {
      threads += peer->ready_.threads;
    }
  }
  if (threads <= newest.ready_.cores) return;
  Log(LogLevel::kWarning, "the workers of a machine have more threads than it has cores",
      {{"host", newest.join_.host},
       {"threads", threads},
       {"cores", newest.ready_.cores},
       {"hint", "give each of them --set compute.threads=N"}});
}

}  // namespace ringfill
