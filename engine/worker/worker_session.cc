#include "engine/worker/worker_session.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/machine.h"
#include "engine/comm/tcp/tcp.h"
#include "engine/cost/calibrate.h"
#include "engine/schedule/plan_check.h"
#include "engine/schedule/plan_codec.h"
#include "engine/worker/result_codec.h"
#include "engine/worker/run_step.h"
#include "engine/worker/workers.h"

namespace ringfill {
namespace {

// For a step, and what the rank holds, to end after the leader has gone.
constexpr Duration kLastStep = std::chrono::seconds(10);
constexpr int kStuckExitCode = 5;
// For the leader to take the last message and close.
constexpr Duration kLastWords = std::chrono::seconds(2);
// The leader sends the rank one thing at a time.
constexpr size_t kMaxQueued = 256;

// The leader's figures are for ranks on its own machine.
RankThreads ThreadsFor(const WelcomeMessage& welcome, int wanted) {
  if (wanted == 0 && welcome.threads > 0) return {welcome.threads, welcome.spin_rounds};
  const int cores = UsableCores();
  const int count = wanted > 0 ? wanted : cores;
  return {count, count <= cores ? kSpinRounds : 0};
}

}  // namespace

WorkerSession::WorkerSession(const SessionParts& parts, std::unique_ptr<Connection> connection)
    : parts_(parts),
      link_(std::make_unique<ControlLink>(
          std::move(connection), kDefaultHeartbeatTimeout,
          ControlLink::Handler{.on_message = [this](ControlMessage m) { OnMessage(std::move(m)); },
                               .on_end = [this](const absl::Status& why) { OnEnd(why); }})) {}

WorkerSession::~WorkerSession() {
  std::shared_ptr<Communicator> comm;
  {
    MutexLock lock(&mutex_);
    comm.swap(comm_);
  }
  comm.reset();  // before the link, which it may have something to say on, and the device
  link_.reset();
  // A GPU that hangs takes nothing back: what the watchdog is for.
  rank_.reset();
  machine_.reset();
  {
    MutexLock lock(&mutex_);
    finished_ = true;
    changed_.SignalAll();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

WorkerSession::End WorkerSession::Run(const JoinMessage& join) {
  watchdog_ = std::thread([this] { Watch(); });
  link_->Start();
  link_->Send(join);
  while (std::optional<ControlMessage> next = Next()) {
    if (const auto* refused = std::get_if<RefusedMessage>(&*next)) {
      Log(refused->try_again ? LogLevel::kWarning : LogLevel::kError,
          "the leader refuses this worker", {{"reason", refused->reason}});
      return refused->try_again ? End::kTryAgain : End::kRefused;
    }
    if (const auto* welcome = std::get_if<WelcomeMessage>(&*next)) {
      if (machine_ != nullptr) continue;
      std::string objection = Object(join, *welcome);
      if (objection.empty()) objection = std::string(Welcome(join, *welcome).message());
      if (objection.empty() || Ended()) continue;
      Log(LogLevel::kError, "this worker refuses the leader", {{"reason", objection}});
      link_->Finish(RefusedMessage{false, objection}, absl::FailedPreconditionError(objection),
                    kLastWords);
      return End::kRefused;
    }
    if (machine_ == nullptr) continue;  // nothing else before WELCOME
    const absl::Status done = Do(*next);
    if (!done.ok() && LeaveWhenLost(done)) return End::kDeviceLost;
  }
  MutexLock lock(&mutex_);
  if (goodbye_) return End::kGoodbye;
  Log(LogLevel::kWarning, "the leader is gone", {{"reason", std::string(ended_->message())}});
  return End::kLost;
}

absl::Status WorkerSession::Do(const ControlMessage& message) {
  if (const auto* form = std::get_if<FormMessage>(&message)) return Form(*form);
  if (const auto* step = std::get_if<StepMessage>(&message)) return RunStep(*step);
  if (const auto* measure = std::get_if<MeasureMessage>(&message)) return Measure(*measure);
  if (const auto* trace = std::get_if<TraceMessage>(&message)) {
    machine_->device().trace().Enable(trace->on);
  }
  return absl::OkStatus();
}

bool WorkerSession::LeaveWhenLost(const absl::Status& failed) {
  if (!machine_->device().lost()) return false;
  const std::string why = absl::StrCat("its GPU is lost: ", failed.message());
  Log(LogLevel::kError, "the GPU fails every call, so that this worker ends",
      {{"reason", std::string(failed.message())}});
  link_->Finish(ByeMessage{why}, absl::UnavailableError(why), kLastWords);
  return true;
}

void WorkerSession::Leave(const std::string& reason) {
  {
    MutexLock lock(&mutex_);
    goodbye_ = true;
  }
  link_->Finish(ByeMessage{reason}, absl::CancelledError(reason), kLastWords);
}

void WorkerSession::OnMessage(ControlMessage message) {
  if (const auto* stop = std::get_if<StopMessage>(&message)) {
    MutexLock lock(&mutex_);
    stop_ = *stop;
    return;
  }
  if (const auto* abort = std::get_if<AbortMessage>(&message)) {
    {
      MutexLock lock(&mutex_);
      if (abort->epoch != epoch_) return;
    }
    return AbortRing(abort->status);
  }
  if (std::get_if<ByeMessage>(&message) != nullptr) {
    {
      MutexLock lock(&mutex_);
      goodbye_ = true;
    }
    return link_->Close(absl::CancelledError("the leader said goodbye"));
  }
  {
    MutexLock lock(&mutex_);
    if (const auto* form = std::get_if<FormMessage>(&message)) {
      newest_attempt_ = form->attempt;
      stop_forming_.Wake();
    }
    if (queue_.size() < kMaxQueued) {
      queue_.push_back(std::move(message));
      changed_.SignalAll();
      return;
    }
  }
  const std::string why =
      absl::StrCat(kMaxQueued, " messages wait for this worker's rank, it takes no more");
  link_->Finish(RefusedMessage{true, why}, absl::ResourceExhaustedError(why), kLastWords);
}

void WorkerSession::OnEnd(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    ended_ = why;
    stop_forming_.Wake();
    changed_.SignalAll();
  }
  AbortRing(absl::UnavailableError(absl::StrCat("the leader is gone: ", why.message())));
}

void WorkerSession::AbortRing(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (comm_ != nullptr) comm_->Abort(status);
  if (device_ != nullptr) device_->Abort(status);
}

// The process must not outlive its leader, whatever its rank is busy with.
void WorkerSession::Watch() {
  MutexLock lock(&mutex_);
  while (!finished_ && !ended_.has_value()) changed_.Wait(&mutex_);
  const Instant limit = Clock::Real().Now() + kLastStep;
  while (!finished_ && Clock::Real().Now() < limit) changed_.WaitUntil(&mutex_, limit);
  if (finished_) return;
  Log(LogLevel::kError, "the leader is gone and the rank does not end: the process exits");
  _exit(kStuckExitCode);
}

std::optional<ControlMessage> WorkerSession::Next() {
  MutexLock lock(&mutex_);
  while (queue_.empty() && !ended_.has_value()) changed_.Wait(&mutex_);
  // What came before the end may say why it came.
  if (queue_.empty()) return std::nullopt;
  ControlMessage message = std::move(queue_.front());
  queue_.pop_front();
  const bool worth_it = !ended_.has_value() || std::holds_alternative<RefusedMessage>(message);
  if (!worth_it) return std::nullopt;
  return message;
}

bool WorkerSession::Ended() {
  MutexLock lock(&mutex_);
  return ended_.has_value();
}

std::string WorkerSession::Object(const JoinMessage& join, const WelcomeMessage& welcome) const {
  std::string mismatch = JoinMismatch(welcome, join);
  if (!mismatch.empty()) return mismatch;
  const KvGeometry own =
      RankGeometry(parts_.model->config(), welcome.device, welcome.kv_dtype, welcome.page_tokens);
  mismatch = GeometryMismatch(welcome.geometry, own);
  return mismatch.empty() ? PoolMismatch(welcome) : mismatch;
}

std::string WorkerSession::PoolMismatch(const WelcomeMessage& welcome) const {
  if (welcome.device == RankDevice::kCuda) return "";  // Welcome knows
  const double bytes =
      static_cast<double>(welcome.pages) * static_cast<double>(welcome.geometry.PageBytes());
  if (bytes <= static_cast<double>(parts_.memory_bytes)) return "";
  return absl::StrCat("kv.memory_bytes: the leader wants ", bytes,
                      " bytes of KV on each rank, this worker may have ", parts_.memory_bytes,
                      " bytes; set it lower there");
}

absl::Status WorkerSession::Welcome(const JoinMessage& join, const WelcomeMessage& welcome) {
  cluster_ = welcome.cluster;
  heartbeat_timeout_ = std::chrono::milliseconds(welcome.heartbeat_timeout_ms);
  kv_dtype_ = welcome.kv_dtype;
  link_->SetSilenceLimit(heartbeat_timeout_);
  RankThreads threads;
  if (welcome.device == RankDevice::kCuda) {
    RF_ASSIGN_OR_RETURN(
        machine_, parts_.gpus->Make(parts_.model, welcome, join.gpu, [this] { return Ended(); }));
  } else {
    threads = ThreadsFor(welcome, parts_.threads);
    machine_ = MakeCpuMachine(parts_.model, welcome, threads, parts_.listener);
  }
  rank_ = std::make_unique<Rank>(
      RankOptions{.model = parts_.model->config(),
                  .geometry = machine_->geometry(),
                  .min_round_timeout = std::chrono::milliseconds(welcome.min_round_timeout_ms),
                  .gather_bytes = static_cast<size_t>(welcome.gather_bytes)},
      machine_->device(), nullptr);
  {
    MutexLock lock(&mutex_);
    device_ = &machine_->device();
  }
  link_->Send(ReadyMessage{threads.count, UsableCores()});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Communicator>> WorkerSession::MakeRing(const FormMessage& form,
                                                                      std::vector<int>& missing) {
  RingTerms terms;
  terms.group_id = form.group_id;
  TcpGroupOptions& options = terms.tcp;
  options.rank = form.rank;
  options.members = form.members;
  options.cluster = cluster_;
  options.epoch = form.attempt;
  options.secret = &parts_.secret;
  options.deadline = Clock::Real().Now() + std::chrono::milliseconds(form.timeout_ms);
  options.stop = &stop_forming_;
  options.silence_limit = heartbeat_timeout_;
  options.on_dead_link = [this, attempt = form.attempt](int peer) {
    link_->Send(DeadLinkMessage{attempt, peer});
  };
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm, machine_->JoinRing(terms, missing));
  return std::shared_ptr<Communicator>(std::move(comm));
}

absl::Status WorkerSession::Form(const FormMessage& form) {
  std::shared_ptr<Communicator> old;
  {
    MutexLock lock(&mutex_);
    old.swap(comm_);
    stop_forming_.Clear();
    if (form.attempt != newest_attempt_ || ended_.has_value()) stop_forming_.Wake();
  }
  old.reset();  // its connections close before the others wait for ours
  std::vector<int> missing;
  absl::StatusOr<std::shared_ptr<Communicator>> ring = MakeRing(form, missing);
  if (ring.ok()) {
    TraceBuffer& trace = machine_->device().trace();
    trace.Enable(form.trace);
    (*ring)->TraceTo(&trace);
    rank_->Join(ring->get());
    machine_->device().Recover();
    machine_->StartEpoch();
    SetLogContext({{"process", "worker"}, {"rank", form.rank}, {"epoch", form.epoch}});
    MutexLock lock(&mutex_);
    comm_ = *ring;
    epoch_ = form.epoch;
    if (ended_.has_value()) comm_->Abort(absl::UnavailableError("the leader is gone"));
  }
  Log(ring.ok() ? LogLevel::kInfo : LogLevel::kWarning,
      ring.ok() ? "in the ring" : "the ring did not form",
      {{"ranks", form.members.size()}, {"status", ring.status().ToString()}});
  link_->Send(FormedMessage{form.attempt, ring.status(), std::move(missing)});
  return ring.status();
}

bool WorkerSession::ShouldStop(const StepPlan& plan, int chunk) {
  MutexLock lock(&mutex_);
  return stop_.epoch == plan.epoch && stop_.step == plan.step && ((stop_.chunks >> chunk) & 1);
}

absl::Status WorkerSession::RunStep(const StepMessage& message) {
  const absl::StatusOr<StepPlan> plan = DecodePlan(message.plan);
  RankStepResult result;
  bool formed;
  uint64_t epoch;
  {
    MutexLock lock(&mutex_);
    formed = comm_ != nullptr;
    epoch = epoch_;
  }
  if (!plan.ok()) {
    result.status = plan.status();
  } else if (!formed || plan->epoch != epoch) {
    result.status = absl::FailedPreconditionError(
        absl::StrCat("a plan of epoch ", plan->epoch, ", this worker is at ", epoch));
  } else if (absl::Status safe = CheckPlan(*plan, LimitsOfPlans()); !safe.ok()) {
    result.status = std::move(safe);
  } else {
    const StepControl control{.should_stop = [&](int chunk) { return ShouldStop(*plan, chunk); },
                              .on_layer =
                                  [&](int layers) {
                                    link_->Send(ProgressMessage{plan->epoch, plan->step, layers});
                                  }};
    result = ringfill::RunStep(*rank_, *plan, control);
  }
  if (!result.status.ok()) {
    Log(LogLevel::kWarning, "a step failed here", {{"status", result.status.ToString()}});
  }
  link_->Send(
      ResultMessage{plan.ok() ? plan->epoch : 0, plan.ok() ? plan->step : 0, EncodeResult(result)});
  return result.status;
}

PlanLimits WorkerSession::LimitsOfPlans() const {
  const KvGeometry& geometry = machine_->geometry();
  const int ranks = rank_->ranks();
  return {.ranks = ranks,
          .page_tokens = geometry.page_tokens,
          .pages_per_rank = machine_->device().pages(),
          .vocab = parts_.model->config().vocab,
          // No sequence is longer than all pages hold.
          .max_positions = machine_->device().pages() * ranks * geometry.page_tokens,
          .rank = rank_->index()};
}

absl::StatusOr<std::vector<double>> WorkerSession::MeasureFigures(Duration limit) {
  {
    MutexLock lock(&mutex_);
    if (comm_ == nullptr) return absl::FailedPreconditionError("no ring is formed");
  }
  CalibrateOptions options;
  options.shape = ModelShape::Of(*parts_.model, static_cast<int64_t>(DTypeBytes(kv_dtype_)),
                                 machine_->geometry().page_tokens);
  options.deadline = Clock::Real().Now() + limit;
  machine_->device().SetWaitLimit(limit);
  RF_ASSIGN_OR_RETURN(const Figures figures,
                      MeasureRank(machine_->device(), rank_->comm(), options));
  return rank_->index() == 0 ? FiguresToNumbers(figures) : std::vector<double>();
}

absl::Status WorkerSession::Measure(const MeasureMessage& ask) {
  absl::StatusOr<std::vector<double>> figures =
      MeasureFigures(std::chrono::milliseconds(ask.timeout_ms));
  if (!figures.ok()) AbortRing(figures.status());
  const absl::Status status = figures.status();
  link_->Send(MeasuredMessage{ask.question, status,
                              figures.ok() ? *std::move(figures) : std::vector<double>()});
  return status;
}

}  // namespace ringfill
