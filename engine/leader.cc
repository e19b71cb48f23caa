#include "engine/leader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/layout/slot_map.h"

namespace ringfill {
namespace {

// How often the leader looks at full outboxes and deadlines while it has nothing to compute.
constexpr Duration kIdlePoll = std::chrono::milliseconds(5);
constexpr Duration kIdleLook = std::chrono::milliseconds(500);

int64_t Nanoseconds(Instant instant) {
  return std::chrono::nanoseconds(instant.time_since_epoch()).count();
}

// What attending to one earlier token costs, over a token's products.
double AttentionShare(const ModelConfig& c) {
  return c.pair_operations() / (2 * c.layer_weights());
}

}  // namespace

Leader::Leader(const LeaderParts& parts)
    : p_(parts),
      attention_share_(AttentionShare(parts.model.config())),
      weights_(parts.options.rank_weights) {
  rank_totals_.resize(static_cast<size_t>(p_.workers.ranks()));
  NoteProgress();
  Publish();
  thread_ = std::thread([this] { Loop(); });
}

Leader::~Leader() {
  p_.inbox.Stop();
  thread_.join();
}

EngineStatus Leader::Status() const {
  const Inbox::Counts counts = p_.inbox.counts();
  MutexLock lock(&mutex_);
  EngineStatus out = status_;
  out.queued = counts.queued;
  out.running = counts.running;
  out.draining = counts.draining;
  const auto now = p_.clock.Now().time_since_epoch();
  out.seconds_since_sign_of_life =
      std::max(0.0, Seconds(now - std::chrono::nanoseconds(progress_ns_.load())));
  if (counts.queued + counts.running > 0) {
    out.seconds_since_progress = out.seconds_since_sign_of_life;
  }
  return out;
}

void Leader::RefreshGauges() const {
  const Inbox::Counts counts = p_.inbox.counts();
  const auto now = p_.clock.Now().time_since_epoch();
  const auto age_s = [&](int64_t since_ns) {
    return std::max(0.0, Seconds(now - std::chrono::nanoseconds(since_ns)));
  };
  const bool working = counts.queued + counts.running > 0;
  p_.metrics.since_progress_s.Set(working ? age_s(progress_ns_.load()) : 0);
  p_.metrics.since_step_s.Set(working ? age_s(step_ns_.load()) : 0);
  p_.metrics.queue_length.Set(static_cast<double>(counts.queued));
  int64_t oldest = queued_ns_.load();
  if (const std::optional<Instant> arrived = p_.inbox.oldest(); arrived.has_value()) {
    oldest = std::min(oldest, Nanoseconds(*arrived));
  }
  p_.metrics.oldest_queued_s.Set(counts.queued > 0 && oldest != kNobody ? age_s(oldest) : 0);
}

std::vector<std::vector<TraceSpan>> Leader::TakeTrace() {
  MutexLock lock(&mutex_);
  return std::exchange(spans_, {});
}

std::vector<RequestSpan> Leader::TakeRequestSpans() {
  MutexLock lock(&mutex_);
  return std::exchange(request_spans_, {});
}

std::vector<RequestSpan> Leader::OpenRequestSpans(Instant now) const {
  std::vector<RequestSpan> out;
  MutexLock lock(&mutex_);
  for (const auto& [id, span] : open_phases_) {
    out.push_back(span);
    out.back().end = now;
  }
  return out;
}

void Leader::Loop() {
  // Looked at now and then, so that a rank that is lost or comes back while nothing runs shows.
  auto next_look = [] { return std::chrono::steady_clock::now() + kIdleLook; };
  for (Instant until = next_look(); p_.inbox.AwaitArrival(&until); until = next_look()) {
    do {
      TakeInbox();
      LetNewcomersIn();
      EndStale();
      AdmitQueued();
      UpdatePauses();
      StepPlan plan = p_.scheduler.Plan();
      if (!plan.empty()) {
        Execute(std::move(plan));
        Publish();
        continue;
      }
      EndStarved();
      NoteProgress();  // with nothing to compute (all clients slow, say) nothing is stuck
      NoteStepEnd();
      Publish();
      const Instant soon = std::chrono::steady_clock::now() + kIdlePoll;
      if (!active_.empty()) p_.inbox.AwaitArrival(&soon);
    } while (!active_.empty() && !p_.inbox.stopped());
  }
  TakeInbox();
  EndAll(absl::CancelledError("the daemon was shut down"));
}

void Leader::TakeInbox() {
  for (Inbox::Arrival& arrival : p_.inbox.Take()) {
    const Request& request = arrival.generation->request();
    SequenceSpec spec;
    spec.id = arrival.id;
    spec.prompt = request.prompt;
    spec.document_starts = request.document_starts;
    spec.max_new_tokens = arrival.generation->max_tokens();
    spec.score = request.kind == RequestKind::kScore || request.prompt_logprobs;
    EnterPhase(arrival.id, *arrival.generation, RequestPhase::kQueue,
               arrival.generation->submitted());
    active_.emplace(arrival.id, std::move(arrival.generation));
    // The ring may have shrunk since the request was let in.
    const auto tokens = static_cast<int64_t>(spec.prompt.size());
    if (!p_.scheduler.CheckFits(tokens, spec.max_new_tokens).ok()) {
      EndUnqueued(arrival.id, NeverFits());
      continue;
    }
    p_.scheduler.Enqueue(std::move(spec));
  }
}

void Leader::EndUnqueued(SequenceId id, const absl::Status& status) {
  LeavePhase(id, *active_.at(id), p_.clock.Now());
  active_.at(id)->Fail(status);
  active_.erase(id);
  p_.inbox.NoteEnded(true);
}

bool Leader::ShouldStop(const Generation& generation) const {
  return generation.outbox().closed() || p_.inbox.stopped() ||
         generation.past_deadline(p_.clock.Now());
}

void Leader::EndStale() {
  const Instant now = p_.clock.Now();
  std::vector<std::pair<SequenceId, absl::Status>> stale;
  for (auto& [id, generation] : active_) {
    if (!generation->failure().ok()) {
      NoteNonFinite(NonFiniteStage::kOutput,
                    {{"request_id", generation->request().id}, {"place", "log-probabilities"}});
      stale.emplace_back(id, generation->failure());
    } else if (generation->outbox().closed()) {
      stale.emplace_back(id, absl::CancelledError("the client went away"));
    } else if (generation->past_deadline(now)) {
      stale.emplace_back(id, absl::DeadlineExceededError("the request's deadline has passed"));
    } else if (generation->paused_since.has_value() &&
               now - *generation->paused_since > p_.options.slow_client_timeout) {
      stale.emplace_back(id, absl::CancelledError("the client has not read for too long"));
    }
  }
  for (auto& [id, status] : stale) Fail(id, std::move(status));
}

void Leader::AdmitQueued() {
  const std::vector<SequenceId> admitted = p_.scheduler.Admit();
  const Instant now = p_.clock.Now();
  for (SequenceId id : admitted) {
    Generation& generation = *active_.at(id);
    if (generation.NoteStarted(now)) {
      EnterPhase(id, generation, RequestPhase::kPrefill, now);
      p_.metrics.AddAdmitted(generation.queue_s(), generation.request().prompt.size());
    }
  }
  NoteOldestQueued();
  if (admitted.empty()) return;
  p_.inbox.NoteAdmitted(static_cast<int64_t>(admitted.size()));
  Publish();  // a step may take long
}

void Leader::UpdatePauses() {
  const Instant now = p_.clock.Now();
  for (auto& [id, generation] : active_) {
    const bool full = generation->outbox().full();
    if (full == generation->paused_since.has_value()) continue;
    generation->paused_since = full ? std::optional<Instant>(now) : std::nullopt;
    p_.scheduler.SetPaused(id, full);
  }
}

void Leader::EndStarved() {
  if (p_.scheduler.starved().empty()) return;
  // Paused sequences hold pages that come free when their clients read on, or when they are ended.
  for (const auto& [id, generation] : active_) {
    if (generation->paused_since.has_value()) return;
  }
  Fail(p_.scheduler.starved().back(),
       absl::ResourceExhaustedError(
           "the KV pool ran out of pages beyond the decode reserve; raise kv.memory_bytes or "
           "kv.decode_reserve, or ask for fewer tokens"));
}

void Leader::Finish(SequenceId id) {
  Generation& generation = *active_.at(id);
  generation.Finish(p_.scheduler.PagesOf(id));
  p_.metrics.AddFinished(generation.max_tokens() == 0, generation.finish_reason(),
                         generation.generated(), generation.decode_s());
  Forget(id);
}

void Leader::Fail(SequenceId id, absl::Status status) {
  active_.at(id)->Fail(std::move(status));
  Forget(id);
}

void Leader::EndAll(const absl::Status& status) {
  while (!active_.empty()) Fail(active_.begin()->first, status);
}

void Leader::Forget(SequenceId id) {
  LeavePhase(id, *active_.at(id), p_.clock.Now());
  const int64_t queued_before = p_.scheduler.queued();
  p_.scheduler.Remove(id);
  active_.erase(id);
  Publish();
  p_.inbox.NoteEnded(p_.scheduler.queued() != queued_before);
}

void Leader::NoteProgress() { progress_ns_ = Nanoseconds(p_.clock.Now()); }

void Leader::NoteStepEnd() { step_ns_ = Nanoseconds(p_.clock.Now()); }

void Leader::NoteOldestQueued() {
  int64_t oldest = kNobody;
  for (const auto& [id, generation] : active_) {
    if (generation->started().has_value()) continue;
    oldest = std::min(oldest, Nanoseconds(generation->submitted()));
  }
  queued_ns_ = oldest;
}

void Leader::Publish() {
  double usage = 0;
  const std::vector<int> slots = SlotCounts(p_.scheduler.slot_map(), p_.scheduler.ranks());
  for (size_t r = 0; r < rank_totals_.size(); ++r) {
    const int64_t used = p_.scheduler.pages_used(static_cast<int>(r));
    RankStatus& rank = rank_totals_[r];
    rank.rank = static_cast<int>(r);
    rank.slots = slots[r];
    rank.pages_total = p_.scheduler.pages_total();
    rank.pages_used = used;
    p_.metrics.SetPages(r, used, rank.pages_total);
    usage = std::max(usage, static_cast<double>(used) / static_cast<double>(rank.pages_total));
  }
  p_.metrics.SetPagesUsage(usage);
  const Inbox::Counts counts = p_.inbox.counts();
  p_.metrics.running_requests.Set(static_cast<double>(p_.scheduler.running()));
  p_.metrics.queue_length.Set(static_cast<double>(counts.queued));
  for (size_t r = rank_totals_.size(); r < p_.metrics.ranks.size(); ++r) p_.metrics.SetGone(r);
  p_.metrics.epoch.Set(static_cast<double>(epoch_));
  p_.metrics.ring_size.Set(ring_formed_ ? static_cast<double>(rank_totals_.size()) : 0);
  const auto recomputed = static_cast<double>(p_.scheduler.recomputed_tokens());
  p_.metrics.recomputed_tokens.Increment(recomputed - p_.metrics.recomputed_tokens.Value());
  MutexLock lock(&mutex_);
  status_.recomputed_tokens = p_.scheduler.recomputed_tokens();
  status_.slots = static_cast<int>(p_.scheduler.slot_map().size());
  status_.imbalance = work_mean_ > 0 ? work_most_ / work_mean_ : 1;
  status_.steps = static_cast<int64_t>(p_.metrics.steps.Value());
  status_.failed_steps = static_cast<int64_t>(p_.metrics.failed_steps.Value());
  status_.epoch = epoch_;
  status_.ring_formed = ring_formed_;
  status_.ranks = rank_totals_;
}

}  // namespace ringfill
