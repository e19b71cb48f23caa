#include "engine/worker/process_workers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/comm/tcp/tcp.h"
#include "engine/model/digest.h"
#include "engine/schedule/plan_codec.h"
#include "engine/worker/gpu_plan.h"
#include "engine/worker/rank.h"
#include "engine/worker/result_codec.h"

namespace ringfill {
namespace {

// How soon a client that went away is noticed while a step runs.
constexpr Duration kStopPoll = std::chrono::milliseconds(20);
// How soon the caller of Reform is heard meanwhile.
constexpr Duration kWaitTurn = std::chrono::milliseconds(100);
// Beyond what ranks wait for each other, so that theirs is the error that is seen.
constexpr Duration kStepMargin = std::chrono::seconds(5);
// To see whether a link that was found dead is dead.
constexpr Duration kProbeTimeout = std::chrono::seconds(1);
constexpr Duration kFormMargin = std::chrono::seconds(1);
// Answers may have come in time to a leader that was held up; a worker that goes on talking is not
// listened to for ever.
constexpr int kMostLateEvents = 4096;
constexpr Duration kMostRetry = std::chrono::seconds(30);
// For a worker to come when none is left.
constexpr Duration kLastHope = std::chrono::seconds(4);
constexpr std::chrono::minutes kMeasureLimit(1);

// For another reason than that somebody is missing, which may pass.
bool FailedForGood(const FormedMessage& formed) {
  return !formed.status.ok() && !SomebodyIsMissing(formed.status);
}

class ProcessWorkers final : public Workers {
 public:
  ProcessWorkers(const WorkersSpec& spec, const ModelConfig& model, const KvGeometry& geometry,
                 const ProcessWorkersOptions& options, std::unique_ptr<WorkerRoster> roster,
                 GpuPages gpu_pages, WorkerMetrics& metrics)
      : model_(model),
        rank_options_{.model = model,
                      .geometry = geometry,
                      .clock = spec.clock,
                      .min_round_timeout = spec.min_round_timeout,
                      .gather_bytes = spec.gather_bytes},
        clock_(Clock::Real()),
        metrics_(metrics),
        gpu_machines_(options.gpus.has_value() ? options.gpus->machines : nullptr),
        gpu_pages_(std::move(gpu_pages)),
        route_(options.route),
        form_timeout_(options.form_timeout),
        most_form_timeout_(std::max(options.form_timeout, options.most_form_timeout)),
        least_attempt_(options.least_attempt),
        reform_limit_(options.reform_limit),
        first_retry_(options.first_retry),
        roster_(std::move(roster)),
        link_faults_(options.link_faults) {}

  int ranks() const override { return static_cast<int>(members_.size()); }
  GpuPages gpu_pages() const override { return gpu_pages_; }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override;
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch,
                                          const std::function<bool()>& while_waiting) override;
  bool WantsReform() override;
  absl::StatusOr<Figures> Measure(const ModelShape& shape) override;
  void Trace(bool on) override;

 private:
  // One step under way.
  struct Step {
    const StepPlan& plan;
    const StepControl& control;
    std::vector<RankStepResult> results;
    std::vector<bool> done;
    size_t missing = 0;
    uint64_t stopped = 0;
    bool aborted = false;
    Duration silent_limit{};
    Instant limit{};
  };

  void SendPlan(Step& step);
  void SendStops(Step& step);
  void Handle(Step& step, const WorkerEvent& event);
  void TakeResult(Step& step, size_t rank, const ResultMessage& message);
  void Settle(Step& step, size_t rank, absl::Status status);
  void AbortOthers(Step& step, const absl::Status& why);
  void GiveUp(Step& step);
  Duration SilentLimit(const StepPlan& plan) const;
  int RankOf(const WorkerPeer& peer) const;
  // The next event, asking while_waiting_ meanwhile; past the deadline what has come; nothing when
  // it is to give up.
  std::optional<WorkerEvent> Await(Instant deadline);
  // At most every kWaitTurn.
  void AskWhetherToGoOn();
  // REQUIRES: the event is a message.
  void NoteDeadLink(const WorkerEvent& event);
  // To tried_.
  void SendForm(const FormMessage& form);
  // What each of tried_ says of the attempt. An error ends it early: it cannot succeed any more,
  // and workers leave it as soon as the next one comes.
  absl::Status AwaitAnswers(uint64_t attempt, Instant deadline,
                            std::vector<std::optional<FormedMessage>>& answers);
  // An attempt to form a ring.
  struct Attempt {
    absl::Status status;
    bool timed_out = false;                     // somebody was waited for in vain
    std::vector<LinkFaults::Link> unmade = {};  // links to blame
  };
  // Of tried_. Those that do not answer are dropped.
  Attempt Form(uint64_t epoch, Duration timeout);
  // Adds what the answer of rank r says of links of tried_.
  void AddUnmade(size_t r, const std::vector<std::optional<FormedMessage>>& answers,
                 std::vector<LinkFaults::Link>& unmade) const;
  // Who would be in a ring now.
  std::vector<WorkerPeerPtr> Candidates() const;
  // The same, waiting for the first one.
  std::vector<WorkerPeerPtr> AwaitPeers(Instant deadline);
  // Until then, or somebody goes.
  void PauseUntil(Instant end);
  absl::StatusOr<std::vector<int>> FormAnyRing(uint64_t epoch);
  // The ring of tried_ is the one now. Where its ranks come from, see Reform.
  std::vector<int> Join();

  const ModelConfig model_;
  const RankOptions rank_options_;
  const Clock& clock_;
  WorkerMetrics& metrics_;
  const std::shared_ptr<const GpuMachines> gpu_machines_;  // null: ranks on CPUs
  const GpuPages gpu_pages_;
  const std::function<std::string(int, int, const std::string&)> route_;
  const Duration form_timeout_, most_form_timeout_, least_attempt_, reform_limit_, first_retry_;
  const std::unique_ptr<WorkerRoster> roster_;

  // The leader's thread's.
  std::vector<WorkerPeerPtr> members_;     // by rank
  bool formed_ = false;                    // members_ have a ring
  std::set<LinkFaults::Link> dead_links_;  // of the ring, by rank
  uint64_t attempts_ = 0;
  uint64_t ring_attempt_ = 0;  // that formed the ring
  // By rank: of the last attempt. After a Reform that failed: when to try them again.
  std::vector<WorkerPeerPtr> tried_;
  Instant retry_at_;
  Duration retry_backoff_ = first_retry_;
  LinkFaults link_faults_;
  std::function<bool()> while_waiting_;
  Instant ask_at_;
  bool given_up_ = false;  // while_waiting_ said so
  uint64_t questions_ = 0;
  bool tracing_ = false;
};

int ProcessWorkers::RankOf(const WorkerPeer& peer) const {
  for (size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].get() == &peer) return static_cast<int>(r);
  }
  return -1;
}

// Since the step began or rank 0 last reported a layer. Ranks that wait for each other fail after
// PeerTimeout; this is for what none of them notices.
Duration ProcessWorkers::SilentLimit(const StepPlan& plan) const {
  StepPlan decodes;
  for (const DecodeToken& token : plan.decodes) {
    decodes.decodes.emplace_back().position = token.position;
  }
  RankOptions floor = rank_options_;
  floor.min_round_timeout = Duration(0);
  return 2 * PeerTimeout(rank_options_, plan) + model_.layers * PeerTimeout(floor, decodes) +
         kStepMargin;
}

std::vector<RankStepResult> ProcessWorkers::Run(const StepPlan& plan, const StepControl& control) {
  Step step{.plan = plan,
            .control = control,
            .results = std::vector<RankStepResult>(static_cast<size_t>(plan.ranks)),
            .done = std::vector<bool>(static_cast<size_t>(plan.ranks)),
            .missing = static_cast<size_t>(plan.ranks)};
  if (!formed_ || members_.size() != step.results.size()) {
    for (RankStepResult& result : step.results) {
      result.status = absl::UnavailableError("no ring is formed");
    }
    return std::move(step.results);
  }
  SendPlan(step);
  while (step.missing > 0) {
    SendStops(step);
    const Instant now = clock_.Now();
    if (now >= step.limit) {
      GiveUp(step);
      continue;
    }
    std::optional<WorkerEvent> event = roster_->NextEvent(std::min(step.limit, now + kStopPoll));
    if (event.has_value()) Handle(step, *event);
  }
  for (size_t r = 0; r < members_.size(); ++r) {
    if (members_[r]->gone()) step.results[r].status = roster_->HowLost(*members_[r]);
    if (!step.results[r].status.ok()) formed_ = false;
  }
  return std::move(step.results);
}

void ProcessWorkers::SendPlan(Step& step) {
  auto message =
      std::make_shared<EncodedControl>(EncodeControl(StepMessage{EncodePlan(step.plan)}));
  for (const WorkerPeerPtr& member : members_) member->link().Send(message);
  step.silent_limit = SilentLimit(step.plan);
  step.limit = clock_.Now() + step.silent_limit;
  // Their going was an event of an earlier step.
  for (size_t r = 0; r < members_.size(); ++r) {
    if (members_[r]->gone()) Settle(step, r, absl::UnavailableError("the worker is gone"));
  }
}

void ProcessWorkers::SendStops(Step& step) {
  if (!step.control.should_stop || step.aborted) return;
  const uint64_t before = step.stopped;
  for (size_t c = 0; c < step.plan.chunks.size(); ++c) {
    if (!((step.stopped >> c) & 1) && step.control.should_stop(static_cast<int>(c))) {
      step.stopped |= uint64_t{1} << c;
    }
  }
  if (step.stopped == before) return;
  for (const WorkerPeerPtr& member : members_) {
    member->link().Send(StopMessage{step.plan.epoch, step.plan.step, step.stopped});
  }
}

void ProcessWorkers::Handle(Step& step, const WorkerEvent& event) {
  const int rank = RankOf(*event.peer);
  if (rank < 0) return;
  const auto r = static_cast<size_t>(rank);
  if (!event.message.has_value()) {
    return Settle(step, r, absl::UnavailableError(absl::StrCat(event.peer->Name(), " is gone")));
  }
  if (const auto* result = std::get_if<ResultMessage>(&*event.message)) {
    if (result->epoch == step.plan.epoch && result->step == step.plan.step) {
      TakeResult(step, r, *result);
    }
  } else if (const auto* progress = std::get_if<ProgressMessage>(&*event.message)) {
    const bool now = progress->epoch == step.plan.epoch && progress->step == step.plan.step;
    if (rank != 0 || !now || step.aborted || progress->layers > model_.layers) return;
    step.limit = clock_.Now() + step.silent_limit;
    if (step.control.on_layer) step.control.on_layer(progress->layers);
  } else {
    NoteDeadLink(event);
  }
}

void ProcessWorkers::TakeResult(Step& step, size_t rank, const ResultMessage& message) {
  if (step.done[rank]) return;
  absl::StatusOr<RankStepResult> result = DecodeResult(message.result);
  absl::Status status = result.status();
  if (status.ok()) status = CheckResult(*result, step.plan, model_.vocab);
  if (!status.ok()) {
    roster_->Drop(members_[rank], LossReason::kConnection, status);
    return Settle(step, rank, status);
  }
  // Times of another machine, on our clock.
  const Duration ahead = members_[rank]->link().clock_ahead();
  if (ahead > kBeatPeriod || ahead < -kBeatPeriod) {
    for (TraceSpan& span : result->trace) {
      span.begin += ahead;
      span.end += ahead;
    }
  }
  status = result->status;
  step.results[rank] = *std::move(result);
  Settle(step, rank, std::move(status));
}

void ProcessWorkers::Settle(Step& step, size_t rank, absl::Status status) {
  if (step.done[rank]) return;
  step.done[rank] = true;
  --step.missing;
  step.results[rank].status = status;
  if (!status.ok()) AbortOthers(step, status);
}

void ProcessWorkers::AbortOthers(Step& step, const absl::Status& why) {
  if (step.aborted) return;
  step.aborted = true;
  step.limit = clock_.Now() + PeerTimeout(rank_options_, step.plan);
  for (size_t r = 0; r < members_.size(); ++r) {
    if (!step.done[r]) members_[r]->link().Send(AbortMessage{step.plan.epoch, why});
  }
}

void ProcessWorkers::GiveUp(Step& step) {
  const absl::Status late = absl::DeadlineExceededError("the step was not done in time");
  if (!step.aborted) return AbortOthers(step, late);
  for (size_t r = 0; r < members_.size(); ++r) {
    if (step.done[r]) continue;
    roster_->Drop(members_[r], LossReason::kHung,
                  absl::DeadlineExceededError("it did not end its step when told to"));
    Settle(step, r, late);
  }
}

std::optional<WorkerEvent> ProcessWorkers::Await(Instant deadline) {
  while (true) {
    AskWhetherToGoOn();
    const Instant now = clock_.Now();
    if (given_up_) return std::nullopt;
    std::optional<WorkerEvent> event =
        roster_->NextEvent(std::min<Instant>(deadline, now + kWaitTurn));
    if (event.has_value() || now >= deadline) return event;
  }
}

void ProcessWorkers::AskWhetherToGoOn() {
  if (!while_waiting_ || clock_.Now() < ask_at_) return;
  if (!while_waiting_()) given_up_ = true;
  ask_at_ = clock_.Now() + kWaitTurn;
}

void ProcessWorkers::NoteDeadLink(const WorkerEvent& event) {
  const auto* dead = std::get_if<DeadLinkMessage>(&*event.message);
  const int rank = RankOf(*event.peer);
  if (dead == nullptr || rank < 0 || dead->attempt != ring_attempt_ || dead->peer >= ranks() ||
      dead->peer == rank) {
    return;
  }
  if (!dead_links_.insert(LinkFaults::Link(std::minmax(rank, static_cast<int>(dead->peer)))).second)
    return;  // from the other end
  const WorkerPeer& peer = *members_[static_cast<size_t>(dead->peer)];
  link_faults_.Note(event.peer->seat(), peer.seat(), clock_.Now());
  metrics_.dead_links.Increment();
  Log(LogLevel::kError, "a link between two ranks is dead",
      {{"from", event.peer->Name()}, {"to", peer.Name()}});
}

void ProcessWorkers::SendForm(const FormMessage& form) {
  for (size_t r = 0; r < tried_.size(); ++r) {
    FormMessage own = form;
    own.rank = static_cast<int32_t>(r);
    for (const WorkerPeerPtr& peer : tried_) {
      own.members.push_back(route_ ? route_(tried_[r]->seat(), peer->seat(), peer->data_address())
                                   : peer->data_address());
    }
    tried_[r]->link().Send(own);
  }
}

absl::Status ProcessWorkers::AwaitAnswers(uint64_t attempt, Instant deadline,
                                          std::vector<std::optional<FormedMessage>>& answers) {
  int late = 0;
  for (size_t missing = tried_.size(); missing > 0 && late < kMostLateEvents;) {
    const std::optional<WorkerEvent> event = Await(deadline);
    if (given_up_) return absl::CancelledError("the ring is not wanted any more");
    if (!event.has_value()) break;
    if (clock_.Now() >= deadline) ++late;
    const auto at = std::find(tried_.begin(), tried_.end(), event->peer);
    if (at == tried_.end()) continue;
    if (!event->message.has_value()) {
      return absl::UnavailableError(absl::StrCat(event->peer->Name(), " is gone"));
    }
    NoteDeadLink(*event);
    const auto* formed = std::get_if<FormedMessage>(&*event->message);
    std::optional<FormedMessage>& answer = answers[static_cast<size_t>(at - tried_.begin())];
    if (formed == nullptr || formed->attempt != attempt || answer.has_value()) continue;
    answer = *formed;
    --missing;
    if (FailedForGood(*formed)) return formed->status;
    // NCCL's group forms as a whole, and nobody's answer says more of who is missing.
    if (gpu_machines_ != nullptr && !formed->status.ok()) return formed->status;
  }
  return absl::OkStatus();
}

void ProcessWorkers::AddUnmade(size_t r, const std::vector<std::optional<FormedMessage>>& answers,
                               std::vector<LinkFaults::Link>& unmade) const {
  const FormedMessage& answer = *answers[r];
  // What is wrong at the other end's address does not depend on whether it answers us.
  const bool for_good = FailedForGood(answer);
  if (for_good && answer.missing.empty()) unmade.emplace_back(tried_[r]->seat(), tried_[r]->seat());
  for (const int32_t other : answer.missing) {
    const auto o = static_cast<size_t>(other);
    if (o == r || o >= tried_.size() || !(for_good || answers[o].has_value())) continue;
    unmade.emplace_back(tried_[r]->seat(), tried_[o]->seat());
  }
}

ProcessWorkers::Attempt ProcessWorkers::Form(uint64_t epoch, Duration timeout) {
  FormMessage form;
  form.epoch = epoch;
  form.attempt = ++attempts_;
  form.timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  form.trace = tracing_;
  if (gpu_machines_ != nullptr && tried_.size() > 1) {
    absl::StatusOr<std::string> id = gpu_machines_->NewGroupId();
    if (!id.ok()) return {.status = id.status()};
    form.group_id = *std::move(id);
  }
  SendForm(form);
  std::vector<std::optional<FormedMessage>> answers(tried_.size());
  const Instant deadline = clock_.Now() + timeout + kFormMargin;
  Attempt attempt;
  attempt.status = AwaitAnswers(form.attempt, deadline, answers);
  const bool left_early = !attempt.status.ok();
  for (size_t r = 0; r < tried_.size(); ++r) {
    if (answers[r].has_value()) {
      attempt.status.Update(answers[r]->status);
      AddUnmade(r, answers, attempt.unmade);
    } else if (!left_early) {
      const absl::Status late =
          absl::DeadlineExceededError("it did not answer while the ring was formed");
      attempt.status.Update(
          absl::DeadlineExceededError(absl::StrCat(tried_[r]->Name(), ": ", late.message())));
      roster_->Drop(tried_[r], LossReason::kHung, late);
    }
  }
  attempt.timed_out = !left_early && !attempt.status.ok();
  return attempt;
}

std::vector<WorkerPeerPtr> ProcessWorkers::Candidates() const {
  std::vector<WorkerPeerPtr> ready = roster_->Ready();
  std::vector<WorkerPeerPtr> in = ready;
  std::erase_if(in, [now = clock_.Now(), this](const WorkerPeerPtr& peer) {
    return link_faults_.IsOut(peer->seat(), now);
  });
  return in.empty() ? ready : in;
}

std::vector<WorkerPeerPtr> ProcessWorkers::AwaitPeers(Instant deadline) {
  while (!roster_->AwaitAny(std::min<Instant>(deadline, clock_.Now() + kWaitTurn))) {
    AskWhetherToGoOn();
    if (clock_.Now() >= deadline || given_up_) return {};
  }
  return Candidates();
}

void ProcessWorkers::PauseUntil(Instant end) {
  while (clock_.Now() < end) {
    const std::optional<WorkerEvent> event = Await(end);
    if (!event.has_value() || !event->message.has_value()) return;
    NoteDeadLink(*event);
  }
}

absl::StatusOr<std::vector<int>> ProcessWorkers::Reform(
    uint64_t epoch, const std::function<bool()>& while_waiting) {
  while_waiting_ = while_waiting;
  ask_at_ = clock_.Now() + kWaitTurn;
  given_up_ = false;
  tried_.clear();
  absl::StatusOr<std::vector<int>> from = FormAnyRing(epoch);
  while_waiting_ = nullptr;
  if (from.ok()) {
    retry_backoff_ = first_retry_;
  } else {
    retry_at_ = clock_.Now() + retry_backoff_;
    retry_backoff_ = std::min<Duration>(2 * retry_backoff_, kMostRetry);
  }
  return from;
}

absl::StatusOr<std::vector<int>> ProcessWorkers::FormAnyRing(uint64_t epoch) {
  absl::Status status = absl::UnavailableError("no worker is left");
  formed_ = false;
  const Instant limit = clock_.Now() + reform_limit_;
  Duration timeout = dead_links_.empty() ? form_timeout_ : kProbeTimeout;
  do {
    std::vector<WorkerPeerPtr> peers =
        AwaitPeers(std::min<Instant>(limit, clock_.Now() + kLastHope));
    if (peers.empty()) break;
    tried_ = std::move(peers);
    const Instant began = clock_.Now();
    const Attempt attempt = Form(epoch, timeout);
    status = attempt.status;
    if (status.ok()) return Join();
    if (given_up_) break;
    Log(LogLevel::kWarning, "the ring did not form",
        {{"epoch", epoch}, {"attempt", attempts_}, {"status", status.ToString()}});
    for (const int seat : link_faults_.LeaveOut(attempt.unmade, clock_.Now())) {
      Log(LogLevel::kError, "a rank is left out: others cannot reach it", {{"rank", seat}});
    }
    if (Candidates() != tried_) continue;
    PauseUntil(std::min<Instant>(limit, began + least_attempt_));
    if (attempt.timed_out) timeout = std::min(2 * timeout, most_form_timeout_);
  } while (!given_up_ && clock_.Now() < limit);
  if (given_up_) return absl::CancelledError("the ring is not wanted any more");
  return absl::UnavailableError(status.message());
}

std::vector<int> ProcessWorkers::Join() {
  std::vector<int> from;
  for (const WorkerPeerPtr& peer : tried_) from.push_back(RankOf(*peer));
  members_ = tried_;
  ring_attempt_ = attempts_;
  formed_ = true;
  dead_links_.clear();
  return from;
}

bool ProcessWorkers::WantsReform() {
  while (const std::optional<WorkerEvent> event = roster_->NextEvent(clock_.Now())) {
    // What else comes between steps is of no use any more.
    if (event->message.has_value()) NoteDeadLink(*event);
  }
  if (!formed_) {
    const std::vector<WorkerPeerPtr> now = Candidates();
    return !now.empty() && (now != tried_ || clock_.Now() >= retry_at_);
  }
  if (!dead_links_.empty() ||
      std::any_of(members_.begin(), members_.end(), [](const auto& m) { return m->gone(); })) {
    return true;
  }
  const std::vector<WorkerPeerPtr> ready = roster_->Ready();
  return std::any_of(ready.begin(), ready.end(), [this](const WorkerPeerPtr& peer) {
    return RankOf(*peer) < 0 && !link_faults_.IsOut(peer->seat(), clock_.Now());
  });
}

// Ranks know the model's shape as well as we do.
absl::StatusOr<Figures> ProcessWorkers::Measure(const ModelShape&) {
  const MeasureMessage ask{++questions_, std::chrono::milliseconds(kMeasureLimit).count()};
  for (const WorkerPeerPtr& member : members_) member->link().Send(ask);
  std::vector<double> numbers;
  const Instant deadline = clock_.Now() + kMeasureLimit + kStepMargin;
  for (size_t missing = members_.size(); missing > 0;) {
    const std::optional<WorkerEvent> event = roster_->NextEvent(deadline);
    if (!event.has_value() && clock_.Now() >= deadline) {
      return absl::DeadlineExceededError("the ranks were not measured in time");
    }
    if (!event.has_value() || RankOf(*event->peer) < 0) continue;
    if (!event->message.has_value()) return roster_->HowLost(*event->peer);
    NoteDeadLink(*event);
    const auto* answer = std::get_if<MeasuredMessage>(&*event->message);
    if (answer == nullptr || answer->question != ask.question) continue;
    RF_RETURN_IF_ERROR(answer->status);
    if (RankOf(*event->peer) == 0) numbers = answer->figures;
    --missing;
  }
  return FiguresFromNumbers(numbers, ranks());
}

void ProcessWorkers::Trace(bool on) {
  tracing_ = on;
  for (const WorkerPeerPtr& member : members_) member->link().Send(TraceMessage{on});
}

// All but the pages of GPUs.
WelcomeMessage WelcomeOf(const WorkersSpec& spec, const Model& model,
                         const ProcessWorkersOptions& options) {
  const auto ms = [](Duration duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  };
  WelcomeMessage ring;
  ring.ranks = spec.ranks;
  FillRandom(std::as_writable_bytes(std::span(&ring.cluster, 1)));
  ring.model_digest = ModelDigest(model.file());
  ring.dtype = options.dtype;
  ring.kv_dtype = options.kv_dtype;
  ring.isa = options.isa;
  ring.strict = spec.strict;
  ring.page_tokens = options.page_tokens;
  ring.pages = spec.pages_per_rank;
  ring.threads = spec.threads_per_rank;
  ring.spin_rounds = spec.spin_rounds;
  ring.expanded_weight_bytes = options.expanded_weight_bytes;
  ring.gather_bytes = static_cast<int64_t>(spec.gather_bytes);
  ring.min_round_timeout_ms = ms(spec.min_round_timeout);
  ring.heartbeat_timeout_ms = ms(options.roster.heartbeat_timeout);
  if (options.gpus.has_value()) {
    ring.device = RankDevice::kCuda;
    ring.chunk_tokens = options.gpus->chunk_tokens;
  }
  ring.geometry = RankGeometry(model.config(), ring.device, options.kv_dtype, options.page_tokens);
  return ring;
}

// Awaits what the workers say of their GPUs, and welcomes them to the pages that all have room for.
absl::StatusOr<GpuPages> SettleGpuPages(const WorkersSpec& spec, const Model& model,
                                        const ProcessWorkersOptions& options,
                                        WorkerRoster& roster) {
  RF_ASSIGN_OR_RETURN(const std::vector<WorkerPeerPtr> joined,
                      roster.AwaitJoined(Clock::Real().Now() + options.roster.join_timeout));
  std::vector<RankGpu> gpus;
  for (const WorkerPeerPtr& peer : joined) {
    gpus.push_back({absl::StrCat(peer->Name(), ", ", peer->gpu().name), peer->gpu().free_bytes});
  }
  RF_ASSIGN_OR_RETURN(GpuPages pages,
                      PlanGpuPages(model, gpus,
                                   {.page_tokens = options.page_tokens,
                                    .kv_memory_bytes = options.gpus->kv_memory_bytes,
                                    .kv_memory_fraction = options.gpus->kv_memory_fraction,
                                    .expanded_weight_bytes = options.expanded_weight_bytes,
                                    .chunk_tokens = options.gpus->chunk_tokens,
                                    .gather_bytes = spec.gather_bytes,
                                    .max_context_tokens = options.gpus->max_context_tokens}));
  roster.Welcome(pages.per_rank);
  return pages;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workers>> MakeProcessWorkers(const WorkersSpec& spec,
                                                            const Model& model,
                                                            const ProcessWorkersOptions& options,
                                                            WorkerMetrics& metrics) {
  if (options.gpus.has_value() && options.gpus->machines == nullptr) {
    return absl::UnimplementedError(kNoGpuSupport);
  }
  const WelcomeMessage ring = WelcomeOf(spec, model, options);
  RosterOptions roster_options = options.roster;
  roster_options.threads_settled_here = spec.threads_settled_here;
  RF_ASSIGN_OR_RETURN(std::unique_ptr<WorkerRoster> roster,
                      WorkerRoster::Start(roster_options, ring, metrics));
  Log(LogLevel::kInfo, "awaiting workers",
      {{"address", roster->address()},
       {"ranks", spec.ranks},
       {"started_here", options.roster.start_workers}});
  GpuPages gpu_pages;
  if (options.gpus.has_value()) {
    RF_ASSIGN_OR_RETURN(gpu_pages, SettleGpuPages(spec, model, options, *roster));
  }
  RF_RETURN_IF_ERROR(roster->AwaitAll(Clock::Real().Now() + options.roster.join_timeout));
  auto workers = std::make_unique<ProcessWorkers>(spec, model.config(), ring.geometry, options,
                                                  std::move(roster), std::move(gpu_pages), metrics);
  RF_ASSIGN_OR_RETURN(const std::vector<int> from, workers->Reform(1, nullptr));
  if (from.size() != static_cast<size_t>(spec.ranks)) {
    return absl::UnavailableError(absl::StrCat(
        "a ring of ", from.size(), " of the ", spec.ranks,
        " ranks formed: a worker was lost or cannot reach another one; the log says which"));
  }
  return workers;
}

}  // namespace ringfill
