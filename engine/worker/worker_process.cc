#include "engine/worker/worker_process.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/comm/tcp/socket.h"
#include "engine/model/digest.h"
#include "engine/schedule/plan_codec.h"
#include "engine/worker/worker_session.h"

namespace ringfill {
namespace {

// A leader that starts workers listens already: who does not reach it has lost it.
constexpr Duration kStartedLimit = std::chrono::seconds(2);
constexpr Duration kOneCall = std::chrono::seconds(5);
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kMostPause = std::chrono::seconds(10);
constexpr size_t kMaxLeaderMessage = kMaxPlanBytes + kMaxControlBytes;

// "host:0" for the address that our side of `connection` has.
absl::StatusOr<std::string> LocalHost(const Connection& connection) {
  const Fd copy(dup(connection.fd()));
  RF_ASSIGN_OR_RETURN(HostPort local, LocalAddress(copy));
  local.port = 0;
  return HostPortText(local);
}

}  // namespace

WorkerProcess::WorkerProcess(WorkerOptions options) : options_(std::move(options)) {}

WorkerProcess::~WorkerProcess() = default;

WorkerEnd WorkerProcess::Run() {
  SetLogContext({{"process", "worker"}, {"rank", options_.rank}});
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Load(options_.model_path);
  if (!model.ok()) {
    Log(LogLevel::kError, "the model cannot be loaded",
        {{"error", std::string(model.status().message())}});
    return WorkerEnd::kBadModel;
  }
  model_ = *std::move(model);
  digest_ = ModelDigest(model_->file());
  Duration pause = kFirstPause;
  give_up_at_ = Clock::Real().Now() + (options_.rejoin ? options_.join_limit : kStartedLimit);
  while (true) {
    const std::optional<WorkerEnd> end = RunSession();
    if (end.has_value()) return *end;
    if (!Pause(pause)) return WorkerEnd::kGoodbye;
    pause = std::min<Duration>(2 * pause, kMostPause);
  }
}

void WorkerProcess::Stop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  stop_called_.SignalAll();
  if (session_ != nullptr) session_->Leave("this worker was told to stop");
}

bool WorkerProcess::Pause(Duration time) {
  const Instant until = Clock::Real().Now() + time;
  MutexLock lock(&mutex_);
  while (!stopping_ && Clock::Real().Now() < until) stop_called_.WaitUntil(&mutex_, until);
  return !stopping_;
}

absl::StatusOr<std::unique_ptr<Connection>> WorkerProcess::CallLeader() {
  Credentials credentials;
  credentials.secret = &options_.secret;
  credentials.own.role = PeerRole::kWorker;
  credentials.own.rank = static_cast<uint32_t>(options_.rank);
  credentials.peer_role = PeerRole::kLeader;
  RF_ASSIGN_OR_RETURN(ProvenSocket socket,
                      ConnectProven(options_.leader, credentials, Clock::Real().Now() + kOneCall));
  Connection::Options limits;
  limits.max_message_bytes = kMaxLeaderMessage;
  auto connection = std::make_unique<Connection>(std::move(socket), limits);
  if (listener_ == nullptr) {
    std::string at = absl::StrCat(options_.data_host, ":0");
    if (options_.data_host.empty()) {
      RF_ASSIGN_OR_RETURN(at, LocalHost(*connection));
    }
    RF_ASSIGN_OR_RETURN(listener_, Listener::Bind(at));
  }
  return connection;
}

JoinMessage WorkerProcess::MakeJoin(const WorkerGpu& gpu) const {
  JoinMessage join;
  join.version = options_.version;
  join.rank = options_.rank;
  join.model_digest = digest_;
  join.model_name = model_->config().name;
  join.dtype = options_.dtype;
  join.kv_dtype = options_.kv_dtype;
  join.best_isa = options_.best_isa;
  join.data_address = listener_->address();
  join.host = options_.host;
  join.boot_id = options_.boot_id;
  join.pid = getpid();
  join.gpu = gpu;
  return join;
}

WorkerGpu WorkerProcess::LookAtGpu() const {
  if (options_.gpus == nullptr) return {.name = options_.no_gpu};
  absl::StatusOr<WorkerGpu> gpu = options_.gpus->Look(options_.device);
  if (!gpu.ok()) return {.name = std::string(gpu.status().message())};
  return *std::move(gpu);
}

std::optional<WorkerEnd> WorkerProcess::RunSession() {
  const bool too_late = Clock::Real().Now() >= give_up_at_;
  // Before the leader waits for what follows: the first look at a GPU may take seconds.
  const WorkerGpu gpu = LookAtGpu();
  absl::StatusOr<std::unique_ptr<Connection>> connection = CallLeader();
  if (!connection.ok()) {
    const bool final = absl::IsUnauthenticated(connection.status()) ||
                       absl::IsInvalidArgument(connection.status());
    const bool ends = too_late || final;
    Log(ends ? LogLevel::kError : LogLevel::kWarning, "cannot join the leader",
        {{"leader", options_.leader},
         {"reason", std::string(connection.status().message())},
         {"hint", ClosedInHandshake(connection.status()) ? "does it have the same secret?"
                                                         : "does it run, and is it reachable?"},
         {"tries_again", !ends}});
    if (ends) return WorkerEnd::kLeaderGone;
    return std::nullopt;
  }
  WorkerSession session({.model = model_,
                         .listener = *listener_,
                         .secret = options_.secret,
                         .threads = options_.threads,
                         .memory_bytes = options_.memory_bytes,
                         .gpus = options_.gpus},
                        *std::move(connection));
  {
    MutexLock lock(&mutex_);
    if (stopping_) return WorkerEnd::kGoodbye;
    session_ = &session;
  }
  const WorkerSession::End end = session.Run(MakeJoin(gpu));
  {
    MutexLock lock(&mutex_);
    session_ = nullptr;
    if (stopping_) return WorkerEnd::kGoodbye;
  }
  switch (end) {
    case WorkerSession::End::kGoodbye:
      Log(LogLevel::kInfo, "the leader said goodbye");
      return WorkerEnd::kGoodbye;
    case WorkerSession::End::kRefused:
      return WorkerEnd::kRefused;
    case WorkerSession::End::kDeviceLost:
      return WorkerEnd::kDeviceLost;
    case WorkerSession::End::kTryAgain:
    case WorkerSession::End::kLost:  // both: it was there
      give_up_at_ = Clock::Real().Now() + options_.join_limit;
      break;
  }
  if (!options_.rejoin) return WorkerEnd::kLeaderGone;
  return std::nullopt;
}

}  // namespace ringfill
