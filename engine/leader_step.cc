// One step of the leader: run it, account for it, tell the requests; or repair what it broke.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/layout/slot_map.h"
#include "engine/leader.h"
#include "engine/request/retry.h"

namespace ringfill {
namespace {

// Steps that may fail one after the other before the requests in them end: a rank that is lost
// costs one, a second lost meanwhile another; what fails more often fails by itself.
constexpr int kMaxFailuresInARow = 4;
// Steps with a prompt that may fail in all, with others that succeed in between: one for which a
// rank has no memory would cost a rank again and again.
constexpr int kMaxFailedSteps = 16;

// How long newcomers wait for a moment in which nothing runs.
constexpr Duration kNewcomerPatience = std::chrono::seconds(30);
constexpr double kDriftShare = 0.1;
constexpr double kReportedDrift = 2;
constexpr size_t kMaxTraceSpans = size_t{1} << 18;  // a rank
constexpr size_t kMaxRequestSpans = size_t{1} << 16;

bool Stopped(const std::vector<RankStepResult>& results, size_t chunk) {
  return (results.front().stopped_mask >> chunk) & 1;
}

// The first failure, or that of a rank without memory: what the others say follows from it.
const absl::Status& CauseOf(const std::vector<RankStepResult>& results) {
  const absl::Status* first = &results.front().status;
  for (const RankStepResult& result : results) {
    if (absl::IsResourceExhausted(result.status)) return result.status;
    if (first->ok()) first = &result.status;
  }
  return *first;
}

absl::Status Retryable(const std::string& message) {
  return WithRetryAfter(absl::UnavailableError(message), kRetrySoon);
}

// Ranks work on the same plan: they stop the same chunks, and their slices of the vocabulary lie
// end to end.
absl::Status CheckAgreement(const std::vector<RankStepResult>& results, int64_t vocab) {
  int64_t covered = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    const RankStepResult& result = results[r];
    if (result.stopped_mask != results.front().stopped_mask) {
      return absl::DataLossError(absl::StrCat("rank ", r, " stopped other chunks than rank 0"));
    }
    if (result.logits.empty()) continue;
    if (result.vocab_begin != covered) {
      return absl::DataLossError(absl::StrCat("rank ", r, "'s logits begin at token ",
                                              result.vocab_begin, ", expected ", covered));
    }
    covered = result.vocab_end;
  }
  if (covered != 0 && covered != vocab) {
    return absl::DataLossError(absl::StrCat("logits of ", covered, " tokens of ", vocab));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Leader::NeverFits() {
  return Retryable(
      "the ring lost ranks and those that are left can never hold this request, try again when "
      "they are back");
}

void Leader::ReportLayer(const StepPlan& plan, int layers_done) {
  NoteProgress();
  const Instant now = p_.clock.Now();
  const double part = static_cast<double>(layers_done) / p_.model.config().layers;
  for (const PrefillChunk& chunk : plan.chunks) {
    Generation& generation = *active_.at(chunk.sequence);
    if (generation.last_token_at().has_value()) continue;  // a decoded token, or a repair
    const auto length = static_cast<double>(chunk.end() - chunk.begin());
    generation.NoteProgress(static_cast<double>(chunk.begin()) + part * length, attention_share_,
                            now);
  }
}

void Leader::Execute(StepPlan plan) {
  const Instant start = p_.clock.Now();
  plan.epoch = epoch_;
  if (const bool wanted = trace_wanted_.load(); wanted != tracing_) {
    tracing_ = wanted;
    p_.workers.Trace(wanted);
  }
  if (p_.measured != nullptr && !plan.chunks.empty() && LogEnabled(LogLevel::kDebug)) {
    Log(LogLevel::kDebug, "ways chosen",
        {{"step", plan.step}, {"options", p_.measured->Explain(plan)}});
  }
  std::vector<const Generation*> of_chunk;
  for (const PrefillChunk& chunk : plan.chunks) {
    of_chunk.push_back(active_.at(chunk.sequence).get());
  }
  const StepControl control{
      .should_stop = [&](int c) { return ShouldStop(*of_chunk[static_cast<size_t>(c)]); },
      .on_layer = [&](int layers_done) { ReportLayer(plan, layers_done); }};
  // Without a ring nothing runs, and replay has none of this epoch.
  PlanRecorder* const recorder = ring_formed_ ? p_.recorder : nullptr;
  if (recorder != nullptr) recorder->AddPlan(plan);
  const StepRows rows = StepRows::Of(plan);
  std::vector<RankStepResult> results = p_.workers.Run(plan, control);
  NoteProgress();
  NoteStepEnd();
  KeepSpans(results);
  absl::Status failure = CauseOf(results);
  failure.Update(CheckAgreement(results, p_.model.config().vocab));
  if (!failure.ok()) {
    if (recorder != nullptr) recorder->AddFailed(plan.step);
    return RepairAfter(plan, failure);
  }
  failures_in_a_row_ = 0;
  AccountStep(plan, results, Seconds(p_.clock.Now() - start));
  FailNonFinite(plan, results);
  TakeScores(plan, results);
  // A stopped chunk left its layers unfinished: its request ends in the next EndStale, before a
  // plan could use the pages, so committing the others is all there is to do.
  for (size_t c = plan.chunks.size(); c-- > 0;) {
    if (Stopped(results, c)) plan.chunks.erase(plan.chunks.begin() + static_cast<ptrdiff_t>(c));
  }
  p_.scheduler.Commit(plan);
  HandlePrefilled(plan);
  HandleLogits(plan, results);
  if (recorder != nullptr) recorder->AddResults(rows, std::move(results));
}

void Leader::FailNonFinite(const StepPlan& plan, const std::vector<RankStepResult>& results) {
  struct Place {
    size_t rank;
    ValueFault fault;
  };
  std::map<SequenceId, Place> first;
  for (size_t r = 0; r < results.size(); ++r) {
    for (const ValueFault& fault : results[r].faults) {
      const auto entry = static_cast<size_t>(fault.entry);
      const SequenceId id = entry < plan.chunks.size()
                                ? plan.chunks[entry].sequence
                                : plan.decodes[entry - plan.chunks.size()].sequence;
      const auto [it, added] = first.try_emplace(id, Place{r, fault});
      if (!added && IsEarlier(fault, it->second.fault)) it->second = {r, fault};
    }
  }
  for (const auto& [id, place] : first) {
    const bool attention =
        place.fault.round >= 0 || place.fault.round == ValueFault::kTokenAttention;
    NoteNonFinite(attention ? NonFiniteStage::kAttention : NonFiniteStage::kProducts,
                  {{"request_id", active_.at(id)->request().id},
                   {"rank", place.rank},
                   {"place", DescribePlace(place.fault)}});
    Fail(id, absl::DataLossError(absl::StrCat("a value is not finite: rank ", place.rank, ", ",
                                              DescribePlace(place.fault),
                                              "; the weights or the arithmetic are damaged")));
  }
}

void Leader::NoteNonFinite(NonFiniteStage stage, const nlohmann::json& fields) {
  p_.metrics.nonfinite_requests[static_cast<size_t>(stage)]->Increment();
  Log(LogLevel::kError, "a value is not finite", fields);
}

void Leader::KeepSpans(const std::vector<RankStepResult>& results) {
  if (!tracing_) return;
  MutexLock lock(&mutex_);
  spans_.resize(std::max(spans_.size(), results.size()));
  for (size_t r = 0; r < results.size(); ++r) {
    auto& spans = spans_[r];
    const size_t room = kMaxTraceSpans - std::min(kMaxTraceSpans, spans.size());
    const auto& more = results[r].trace;
    spans.insert(spans.end(), more.begin(),
                 more.begin() + static_cast<ptrdiff_t>(std::min(room, more.size())));
    status_.trace_dropped += static_cast<int64_t>(more.size() - std::min(room, more.size()));
  }
}

void Leader::EnterPhase(SequenceId id, const Generation& generation, RequestPhase phase,
                        Instant at) {
  LeavePhase(id, generation, at);
  const Request& request = generation.request();
  MutexLock lock(&mutex_);
  open_phases_[id] = {
      .request_id = request.id,
      .traceparent = request.traceparent,
      .phase = phase,
      .tokens = phase == RequestPhase::kDecode ? 0 : static_cast<int64_t>(request.prompt.size()),
      .begin = at,
      .end = at,
      .open = true};
}

// Of requests that nobody takes in time, the first stay.
void Leader::LeavePhase(SequenceId id, const Generation& generation, Instant at) {
  MutexLock lock(&mutex_);
  auto phase = open_phases_.extract(id);
  if (phase.empty() || !trace_wanted_.load()) return;
  if (request_spans_.size() >= kMaxRequestSpans) {
    ++status_.trace_dropped;
    return;
  }
  RequestSpan& span = phase.mapped();
  if (span.phase == RequestPhase::kDecode) span.tokens = generation.generated();
  span.end = at;
  span.open = false;
  request_spans_.push_back(std::move(span));
}

void Leader::NotePrediction(const StepPlan& plan, double seconds) {
  if (p_.measured == nullptr) return;
  const std::optional<double> predicted = p_.measured->PredictSeconds(plan);
  if (!predicted.has_value() || *predicted <= 0) return;
  const double ratio = seconds / *predicted;
  p_.metrics.measured_over_predicted.Observe(ratio);
  drift_ += kDriftShare * (ratio - drift_);
  const bool off = drift_ > kReportedDrift || drift_ < 1 / kReportedDrift;
  if (off && !drift_reported_) {
    Log(LogLevel::kWarning, "steps take another time than the figures measured at start predict",
        {{"measured_over_predicted", drift_}});
  }
  drift_reported_ = off;
}

void Leader::NoteImbalance(const std::vector<RankStepResult>& results) {
  const ModelConfig& c = p_.model.config();
  // Rows are counted once for each half of a layer.
  const double row = c.layer_weights();
  const double pair = c.pair_operations();
  double sum = 0;
  double most = 0;
  for (const RankStepResult& result : results) {
    const double operations = row * static_cast<double>(result.work.product_rows) +
                              pair * static_cast<double>(result.work.attention_pairs);
    p_.metrics.ranks[static_cast<size_t>(&result - results.data())].operations->Increment(
        operations);
    sum += operations;
    most = std::max(most, operations);
  }
  if (sum == 0) return;
  const double ratio = most * static_cast<double>(results.size()) / sum;
  p_.metrics.imbalance.Observe(ratio);
  work_most_ += most;
  work_mean_ += sum / static_cast<double>(results.size());
}

void Leader::AccountStep(const StepPlan& plan, const std::vector<RankStepResult>& results,
                         double seconds) {
  p_.metrics.AddStep(results);
  p_.metrics.AddPlan(plan, seconds);
  NoteImbalance(results);
  NotePrediction(plan, seconds);
  if (!plan.chunks.empty()) p_.metrics.prefill_s.Increment(seconds);
  MutexLock lock(&mutex_);
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan.chunks[c];
    if (Stopped(results, c)) continue;
    const auto tokens = static_cast<int64_t>(chunk.tokens.size());
    p_.metrics.prefill_tokens.Increment(static_cast<double>(tokens));
    p_.metrics.AddWay(chunk.mode, chunk.strategy, tokens);
    status_.mode_tokens[static_cast<size_t>(chunk.mode)] += tokens;
    if (chunk.mode != TokenMode::kReplicated) {
      status_.strategy_tokens[static_cast<size_t>(chunk.strategy)] += tokens;
    }
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const RankStepResult& result = results[r];
    const int rank = static_cast<int>(r);
    for (const PrefillChunk& chunk : plan.chunks) {
      active_.at(chunk.sequence)
          ->AddShare(rank, 1e3 * result.prefill_busy_s, 1e3 * result.prefill_wait_s);
    }
    for (const DecodeToken& decode : plan.decodes) {
      active_.at(decode.sequence)
          ->AddShare(rank, 1e3 * result.decode_busy_s, 1e3 * result.decode_wait_s);
    }
    RankStatus& total = rank_totals_[r];
    total.busy_s += result.prefill_busy_s + result.decode_busy_s;
    total.wait_s += result.prefill_wait_s + result.decode_wait_s;
    total.ring_bytes += static_cast<double>(result.ring_bytes);
    total.transfer_s += result.transfer_s;
    total.hidden_s += result.hidden_s();
  }
}

void Leader::TakeScores(const StepPlan& plan, const std::vector<RankStepResult>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    for (const ScoredToken& score : results[r].scores) {
      const auto it = active_.find(plan.chunks[static_cast<size_t>(score.chunk)].sequence);
      if (it == active_.end()) continue;
      it->second->AddScore(static_cast<int>(r), score.position, score.logprob);
    }
  }
}

void Leader::HandlePrefilled(const StepPlan& plan) {
  const Instant now = p_.clock.Now();
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto it = active_.find(chunk.sequence);
    // Where a chunk ends says nothing: it may have filled holes.
    if (it == active_.end() || it->second->prefilled()) continue;
    if (p_.scheduler.PromptMissing(chunk.sequence) != 0) continue;
    Generation& generation = *it->second;
    generation.NotePrefilled(now);
    if (generation.max_tokens() > 0) {
      EnterPhase(chunk.sequence, generation, RequestPhase::kDecode, now);
    }
    p_.metrics.prefill_time_s.Observe(generation.prefill_s());
    if (generation.max_tokens() == 0 && generation.failure().ok()) Finish(chunk.sequence);
  }
}

void Leader::HandleLogits(const StepPlan& plan, const std::vector<RankStepResult>& results) {
  std::vector<SequenceId> rows;
  for (const PrefillChunk& chunk : plan.chunks) {
    if (chunk.wants_logits) rows.push_back(chunk.sequence);
  }
  for (const DecodeToken& decode : plan.decodes) rows.push_back(decode.sequence);
  std::vector<float> logits(static_cast<size_t>(p_.model.config().vocab));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const RankStepResult& result : results) {
      const int64_t n = result.vocab_end - result.vocab_begin;
      std::copy_n(result.logits.begin() + static_cast<int64_t>(i) * n, n,
                  logits.begin() + result.vocab_begin);
    }
    HandleToken(rows[i], logits);
  }
}

void Leader::HandleToken(SequenceId id, std::span<const float> logits) {
  const auto it = active_.find(id);
  if (it == active_.end()) return;
  Generation& generation = *it->second;
  if (!generation.failure().ok()) return;  // EndStale ends it
  const Instant now = p_.clock.Now();
  const std::optional<Instant> before = generation.last_token_at();
  absl::StatusOr<std::optional<TokenId>> next = generation.Step(logits, now);
  if (!next.ok()) {
    if (absl::IsDataLoss(next.status())) {
      NoteNonFinite(NonFiniteStage::kOutput,
                    {{"request_id", generation.request().id}, {"place", "the logits"}});
    }
    return Fail(id, std::move(next).status());
  }
  if (before.has_value()) {
    p_.metrics.inter_token_s.Observe(Seconds(now - *before));
  } else {
    p_.metrics.ttft_s.Observe(Seconds(now - generation.submitted()));
  }
  p_.metrics.decode_tokens.Increment();
  if (next->has_value()) {
    p_.scheduler.AppendToken(id, **next);
  } else {
    Finish(id);
  }
}

void Leader::RepairAfter(const StepPlan& plan, const absl::Status& why) {
  Log(LogLevel::kError, "step failed, the ring forms anew",
      {{"epoch", epoch_}, {"step", plan.step}, {"status", why.ToString()}});
  p_.metrics.failed_steps.Increment();
  p_.scheduler.Abandon(plan);
  ++failures_in_a_row_;
  if (const absl::Status formed = FormRing(); !formed.ok()) {
    failures_in_a_row_ = 0;
    if (p_.inbox.stopped()) return;  // Loop ends all
    return EndAll(Retryable(
        absl::StrCat("the ring could not form anew, try again: ", std::string(formed.message()))));
  }
  // What a rank has no memory for fails again; smaller steps go on, so that no rank leaves.
  const bool too_large = absl::IsResourceExhausted(why);
  if (!too_large && failures_in_a_row_ < kMaxFailuresInARow) return EndCostly(plan, why);
  failures_in_a_row_ = 0;
  const absl::Status failed =
      too_large ? absl::ResourceExhaustedError(absl::StrCat("a rank has no memory for the step: ",
                                                            std::string(why.message())))
                : Retryable(absl::StrCat("the step failed again and again, try again later: ",
                                         why.ToString()));
  auto end = [&](SequenceId id) {
    if (active_.contains(id)) Fail(id, failed);
  };
  for (const PrefillChunk& chunk : plan.chunks) end(chunk.sequence);
  // Decodes take little, and go on without the chunks.
  if (too_large && !plan.chunks.empty()) return;
  for (const DecodeToken& decode : plan.decodes) end(decode.sequence);
}

void Leader::EndCostly(const StepPlan& plan, const absl::Status& why) {
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto it = active_.find(chunk.sequence);
    if (it == active_.end() || it->second->NoteFailedStep() < kMaxFailedSteps) continue;
    Fail(chunk.sequence,
         Retryable(absl::StrCat(
             kMaxFailedSteps, " steps with this prompt failed, the last with: ", why.ToString())));
  }
}

absl::Status Leader::FormRing() {
  ++epoch_;
  absl::StatusOr<std::vector<int>> formed =
      p_.workers.Reform(epoch_, [this] { return ServeWhileForming(); });
  ring_formed_ = formed.ok();
  if (!formed.ok()) {
    Publish();
    return std::move(formed).status();
  }
  const std::vector<int> from = *std::move(formed);
  if (p_.recorder != nullptr) p_.recorder->AddRing(epoch_, from);
  const Regrouped regrouped =
      p_.scheduler.Regroup(from, RedealSlots(p_.scheduler.slot_map(), from, WeightsOf(from)));
  int64_t lost_tokens = 0;
  for (const Regrouped::Loss& loss : regrouped.lost) {
    for (const Span& span : loss.spans) lost_tokens += span.size();
  }
  if (p_.measured != nullptr) {
    p_.measured->Regroup(from);
    p_.metrics.SetRates(p_.measured->figures());
  }
  NoteStrangers(from);
  std::vector<RankStatus> totals(from.size());
  for (size_t r = 0; r < from.size(); ++r) {
    if (from[r] >= 0) totals[r] = rank_totals_[static_cast<size_t>(from[r])];
  }
  rank_totals_ = std::move(totals);
  Log(LogLevel::kInfo, "the ring formed",
      {{"epoch", epoch_},
       {"ranks", static_cast<int64_t>(from.size())},
       {"lost_tokens", lost_tokens},
       {"queued_again", static_cast<int64_t>(regrouped.requeued.size())},
       {"ended", static_cast<int64_t>(regrouped.unfit.size())}});
  p_.inbox.NoteRequeued(static_cast<int64_t>(regrouped.requeued.size()));
  for (SequenceId id : regrouped.unfit) Fail(id, NeverFits());
  Publish();
  return absl::OkStatus();
}

void Leader::NoteStrangers(const std::vector<int>& from) const {
  if (p_.measured == nullptr && weights_.empty()) return;
  for (size_t r = 0; r < from.size(); ++r) {
    if (from[r] >= 0) continue;
    Log(LogLevel::kInfo,
        "a rank that joined was not measured: it counts as the mean of the others, its links as "
        "the slowest",
        {{"rank", r}, {"epoch", epoch_}});
  }
}

// What it ends is gone before Regroup sees the sequences.
bool Leader::ServeWhileForming() {
  if (std::exchange(ring_formed_, false)) Publish();
  NoteProgress();
  TakeInbox();
  EndStale();
  return !p_.inbox.stopped();
}

std::vector<double> Leader::WeightsOf(const std::vector<int>& from) {
  if (weights_.empty()) return {};
  const double mean =
      std::accumulate(weights_.begin(), weights_.end(), 0.0) / static_cast<double>(weights_.size());
  std::vector<double> weights;
  for (int rank : from) weights.push_back(rank < 0 ? mean : weights_[static_cast<size_t>(rank)]);
  return weights_ = std::move(weights);
}

void Leader::LetNewcomersIn() {
  if (!p_.workers.WantsReform()) {
    newcomers_since_.reset();
    return;
  }
  // What runs now would have to move: a newcomer waits for a quiet moment first.
  const Instant now = p_.clock.Now();
  if (!newcomers_since_.has_value()) newcomers_since_ = now;
  if (p_.scheduler.running() > 0 && now - *newcomers_since_ < kNewcomerPatience) return;
  newcomers_since_.reset();
  if (const absl::Status formed = FormRing(); !formed.ok() && !p_.inbox.stopped()) {
    Log(LogLevel::kError, "the ring could not form anew", {{"status", formed.ToString()}});
  }
}

}  // namespace ringfill
