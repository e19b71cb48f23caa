#include "engine/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/engine_metrics.h"
#include "engine/request/generation.h"
#include "engine/schedule/scheduler.h"
#include "engine/worker/worker_group.h"

namespace ringfill {
namespace {

// How often the leader looks at full outboxes and deadlines while it has nothing to compute.
constexpr Duration kIdlePoll = std::chrono::milliseconds(5);
constexpr int kSpinRounds = 2000;

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int64_t MachineBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

absl::Status CheckOption(bool ok, const char* name, int64_t value, const std::string& need) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", need));
}

absl::Status CheckOptions(const EngineOptions& o) {
  RF_RETURN_IF_ERROR(CheckOption(o.ranks >= 1 && o.ranks <= kMaxRanks, "ranks.count", o.ranks,
                                 absl::StrCat("1 to ", kMaxRanks)));
  RF_RETURN_IF_ERROR(CheckOption(o.threads >= 0 && o.threads <= 1024, "compute.threads", o.threads,
                                 "0 (all cores) to 1024"));
  RF_RETURN_IF_ERROR(
      CheckOption(o.page_tokens >= 16 && o.page_tokens <= 256 && o.page_tokens % 16 == 0,
                  "kv.page_tokens", o.page_tokens, "a multiple of 16 from 16 to 256"));
  RF_RETURN_IF_ERROR(
      CheckOption(o.stripe_tokens >= o.page_tokens && o.stripe_tokens % o.page_tokens == 0,
                  "sharding.stripe_tokens", o.stripe_tokens,
                  absl::StrCat("a multiple of kv.page_tokens (", o.page_tokens, ")")));
  RF_RETURN_IF_ERROR(
      CheckOption(o.chunk_tokens >= 1, "prefill.chunk_tokens", o.chunk_tokens, "at least 1"));
  RF_RETURN_IF_ERROR(CheckOption(o.max_queued_requests >= 1, "scheduler.max_queued_requests",
                                 o.max_queued_requests, "at least 1"));
  RF_RETURN_IF_ERROR(CheckOption(o.max_running_requests >= 1 && o.max_running_requests <= 256,
                                 "scheduler.max_running_requests", o.max_running_requests,
                                 "1 to 256"));
  RF_RETURN_IF_ERROR(CheckOption(o.outbox_events >= 1, "server.outbox_events",
                                 static_cast<int64_t>(o.outbox_events), "at least 1"));
  return CheckOption(o.kv_memory_bytes >= 0, "kv.memory_bytes", o.kv_memory_bytes,
                     "0 (automatic) or a size");
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, std::shared_ptr<const Model> model,
       std::shared_ptr<const Tokenizer> tokenizer, Metrics& metrics, const Clock& clock);
  ~Impl();

  absl::Status Start();
  absl::StatusOr<std::shared_ptr<Outbox>> Submit(Request request, std::function<void()> on_ready);
  void BeginDrain();
  bool WaitIdle(Duration timeout);
  EngineStatus Status() const;

  const EngineInfo& info() const { return info_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  using Active = std::map<SequenceId, std::unique_ptr<Generation>>;

  void SettleOptions();
  void Loop();
  bool WaitForWork();
  void TakeInbox();
  void EndStale();
  void AdmitQueued();
  void UpdatePauses();
  void EndStarved();
  void Execute(const StepPlan& plan);
  void ReportLayer(const StepPlan& plan, int layers_done);
  bool ShouldStop(const Generation& generation) const;
  void FailStep(const StepPlan& plan, const absl::Status& status);
  void AccountStep(const StepPlan& plan, const std::vector<RankStepResult>& results,
                   double seconds);
  void HandlePrefilled(const StepPlan& plan, const std::vector<RankStepResult>& results);
  void HandleLogits(const StepPlan& plan, const std::vector<RankStepResult>& results);
  void HandleToken(SequenceId id, std::span<const float> logits);
  void Finish(SequenceId id);
  void Fail(SequenceId id, absl::Status status);
  void Forget(SequenceId id);
  void NoteProgress();
  void Publish();

  EngineOptions options_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Clock& clock_;
  EngineMetrics metrics_;
  EngineInfo info_;
  double attention_share_ = 0;  // see Generation::NoteProgress

  std::unique_ptr<Placement> placement_;
  std::unique_ptr<ExpandedWeights> weights_;
  std::unique_ptr<LayerForward> forward_;
  std::unique_ptr<AttentionKernel> attention_;
  ForwardContext context_;
  std::unique_ptr<WorkerGroup> workers_;
  std::unique_ptr<Scheduler> scheduler_;

  // The leader's own.
  Active active_;
  uint64_t epoch_ = 1;
  std::vector<RankStatus> rank_totals_;

  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> progress_ns_{0};  // clock time of the last progress

  mutable Mutex mutex_;
  std::deque<std::pair<SequenceId, std::unique_ptr<Generation>>> inbox_ ABSL_GUARDED_BY(mutex_);
  SequenceId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;  // inbox and the scheduler's queue
  int64_t living_ ABSL_GUARDED_BY(mutex_) = 0;  // queued or running
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  EngineStatus status_ ABSL_GUARDED_BY(mutex_);
  CondVar work_;
  CondVar idle_;

  std::thread leader_;
};

Engine::Impl::Impl(const EngineOptions& options, std::shared_ptr<const Model> model,
                   std::shared_ptr<const Tokenizer> tokenizer, Metrics& metrics, const Clock& clock)
    : options_(options),
      model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      clock_(clock),
      metrics_(metrics, options.ranks) {}

void Engine::Impl::SettleOptions() {
  EngineOptions& o = options_;
  if (!o.dtype.has_value()) {
    o.dtype = o.isa == CpuIsa::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
  }
  if (!o.kv_dtype.has_value()) o.kv_dtype = o.dtype;
  if (o.threads == 0) o.threads = UsableCores();
  if (o.max_context_tokens == 0) o.max_context_tokens = model_->config().trained_context;
  const ModelConfig& c = model_->config();
  info_.ranks = o.ranks;
  info_.threads_per_rank = std::max(1, o.threads / o.ranks);
  info_.dtype = *o.dtype;
  info_.kv_dtype = *o.kv_dtype;
  info_.isa = CpuIsaName(o.isa);
  info_.stripe_tokens = o.stripe_tokens;
  info_.page_tokens = o.page_tokens;
  info_.chunk_tokens = o.chunk_tokens;
  info_.max_context_tokens = o.max_context_tokens;

  context_.kv_shape = {*o.kv_dtype, c.head_dim, o.page_tokens};
  context_.geometry = {c.layers, c.kv_heads, o.page_tokens, context_.kv_shape.BlockBytes()};
  const auto page_bytes = static_cast<int64_t>(context_.geometry.PageBytes());
  int64_t bytes = o.kv_memory_bytes;
  if (bytes == 0) {
    // Four contexts, and a partly filled page a rank for every request that may run.
    const int64_t context_pages = o.max_context_tokens / o.page_tokens + o.ranks;
    const int64_t pages = 4 * context_pages + o.max_running_requests * o.ranks;
    bytes = std::min(pages * page_bytes, MachineBytes() / 4);
  }
  const int64_t pages_per_rank = bytes / o.ranks / page_bytes;
  info_.kv_pages = pages_per_rank * o.ranks;
  info_.kv_bytes = info_.kv_pages * page_bytes;
  info_.kv_tokens = info_.kv_pages * o.page_tokens;
  // 4 h d operations a (query, key) pair over 2 w (2 q + 2 kv + 3 ffn) a token.
  attention_share_ = 1.0 * c.heads * c.head_dim /
                     (static_cast<double>(c.width) * (c.q_width() + c.kv_width()) +
                      1.5 * static_cast<double>(c.width) * c.ffn_width);
}

absl::Status Engine::Impl::Start() {
  SettleOptions();
  const int64_t pages_per_rank = info_.kv_pages / options_.ranks;
  if (pages_per_rank == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv.memory_bytes is ", options_.kv_memory_bytes, "; one page on each of ", options_.ranks,
        " ranks takes ", context_.geometry.PageBytes() * static_cast<size_t>(options_.ranks),
        " bytes"));
  }
  if (info_.kv_bytes > MachineBytes() || pages_per_rank > std::numeric_limits<PageId>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("kv.memory_bytes is ", info_.kv_bytes,
                                                   ", the machine has ", MachineBytes(), " bytes"));
  }
  placement_ = std::make_unique<Placement>(options_.ranks, options_.stripe_tokens);
  weights_ = std::make_unique<ExpandedWeights>(*model_, info_.dtype, options_.expanded_weight_bytes,
                                               options_.ranks);
  forward_ = std::make_unique<LayerForward>(*model_, *weights_, info_.dtype);
  attention_ = MakeAttentionKernel(context_.kv_shape, options_.isa);
  info_.attention_kernel = attention_->name();
  context_.model = model_.get();
  context_.weights = weights_.get();
  context_.forward = forward_.get();
  context_.attention = attention_.get();
  context_.isa = options_.isa;
  context_.clock = &clock_;
  context_.min_round_timeout = options_.min_round_timeout;
  const bool fits_cores = info_.threads_per_rank * options_.ranks <= UsableCores();
  workers_ =
      std::make_unique<WorkerGroup>(context_, *placement_,
                                    WorkerGroupOptions{.ranks = options_.ranks,
                                                       .threads_per_rank = info_.threads_per_rank,
                                                       .spin_rounds = fits_cores ? kSpinRounds : 0,
                                                       .pages_per_rank = pages_per_rank,
                                                       .fault = options_.fault});
  scheduler_ = std::make_unique<Scheduler>(
      *placement_, SchedulerOptions{.page_tokens = options_.page_tokens,
                                    .pages_per_rank = pages_per_rank,
                                    .chunk_tokens = options_.chunk_tokens,
                                    .decode_reserve_tokens = options_.decode_reserve_tokens,
                                    .max_running = options_.max_running_requests});
  for (int r = 0; r < options_.ranks; ++r) {
    rank_totals_.push_back({.rank = r, .pages_total = pages_per_rank});
  }
  Publish();
  leader_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

Engine::Impl::~Impl() {
  if (!leader_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    stopping_.store(true);
    work_.SignalAll();
  }
  leader_.join();
}

absl::StatusOr<std::shared_ptr<Outbox>> Engine::Impl::Submit(Request request,
                                                             std::function<void()> on_ready) {
  RF_RETURN_IF_ERROR(ValidateRequest(
      request, {.vocab = model_->config().vocab, .max_context_tokens = info_.max_context_tokens}));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens =
      request.kind == RequestKind::kScore
          ? 0
          : std::min<int64_t>(request.stop.max_tokens, info_.max_context_tokens - prompt_tokens);
  RF_RETURN_IF_ERROR(scheduler_->CheckFits(prompt_tokens, max_tokens));
  const Instant now = clock_.Now();
  auto outbox = std::make_shared<Outbox>(options_.outbox_events, std::move(on_ready));
  auto generation =
      std::make_unique<Generation>(std::move(request), max_tokens, outbox, *tokenizer_, now);
  int64_t ahead = 0;
  {
    MutexLock lock(&mutex_);
    if (draining_) return absl::UnavailableError("the daemon is shutting down");
    if (queued_ >= options_.max_queued_requests) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue is full: ", queued_, " requests wait, the bound is ",
                       options_.max_queued_requests, "; try again later"));
    }
    ahead = queued_;
    ++queued_;
    metrics_.queue_length.Set(static_cast<double>(queued_));
    if (living_++ == 0) NoteProgress();  // the time without work does not count
  }
  // The first event, pushed without the lock because the consumer's callback runs in it.
  outbox->Push(AcceptedEvent{prompt_tokens, 0, ahead});
  MutexLock lock(&mutex_);
  inbox_.emplace_back(next_id_++, std::move(generation));
  work_.Signal();
  return outbox;
}

void Engine::Impl::BeginDrain() {
  MutexLock lock(&mutex_);
  draining_ = true;
  status_.draining = true;
}

bool Engine::Impl::WaitIdle(Duration timeout) {
  const Instant until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&mutex_);
  while (living_ > 0) {
    if (!idle_.WaitUntil(&mutex_, until)) return living_ == 0;
  }
  return true;
}

EngineStatus Engine::Impl::Status() const {
  MutexLock lock(&mutex_);
  EngineStatus out = status_;
  out.queued = queued_;
  out.running = living_ - queued_;
  if (living_ > 0) {
    const auto now = clock_.Now().time_since_epoch();
    out.seconds_since_progress =
        std::max(0.0, Seconds(now - std::chrono::nanoseconds(progress_ns_.load())));
  }
  return out;
}

bool Engine::Impl::WaitForWork() {
  MutexLock lock(&mutex_);
  while (inbox_.empty() && active_.empty() && !stopping_) work_.Wait(&mutex_);
  return !stopping_;
}

void Engine::Impl::Loop() {
  while (WaitForWork()) {
    TakeInbox();
    EndStale();
    AdmitQueued();
    UpdatePauses();
    const StepPlan plan = scheduler_->Plan();
    if (plan.empty()) {
      EndStarved();
      NoteProgress();  // with nothing to compute (all clients slow, say) nothing is stuck
      Publish();
      MutexLock lock(&mutex_);
      if (inbox_.empty() && !active_.empty() && !stopping_) {
        work_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + kIdlePoll);
      }
      continue;
    }
    Execute(plan);
    Publish();
  }
  TakeInbox();
  while (!active_.empty()) {
    Fail(active_.begin()->first, absl::CancelledError("the daemon was shut down"));
  }
}

void Engine::Impl::TakeInbox() {
  std::deque<std::pair<SequenceId, std::unique_ptr<Generation>>> arrived;
  {
    MutexLock lock(&mutex_);
    arrived.swap(inbox_);
  }
  for (auto& [id, generation] : arrived) {
    const Request& request = generation->request();
    scheduler_->Enqueue({.id = id,
                         .prompt = request.prompt,
                         .max_new_tokens = generation->max_tokens(),
                         .score = request.kind == RequestKind::kScore || request.prompt_logprobs});
    active_.emplace(id, std::move(generation));
  }
}

bool Engine::Impl::ShouldStop(const Generation& generation) const {
  return generation.outbox().closed() || stopping_.load() || generation.past_deadline(clock_.Now());
}

void Engine::Impl::EndStale() {
  const Instant now = clock_.Now();
  std::vector<std::pair<SequenceId, absl::Status>> stale;
  for (auto& [id, generation] : active_) {
    if (!generation->failure().ok()) {
      stale.emplace_back(id, generation->failure());
    } else if (generation->outbox().closed()) {
      stale.emplace_back(id, absl::CancelledError("the client went away"));
    } else if (generation->past_deadline(now)) {
      stale.emplace_back(id, absl::DeadlineExceededError("the request's deadline has passed"));
    } else if (generation->paused_since.has_value() &&
               now - *generation->paused_since > options_.slow_client_timeout) {
      stale.emplace_back(id, absl::CancelledError("the client has not read for too long"));
    }
  }
  for (auto& [id, status] : stale) Fail(id, std::move(status));
}

void Engine::Impl::AdmitQueued() {
  const std::vector<SequenceId> admitted = scheduler_->Admit();
  const Instant now = clock_.Now();
  for (SequenceId id : admitted) active_.at(id)->NoteStarted(now);
  if (admitted.empty()) return;
  {
    MutexLock lock(&mutex_);
    queued_ -= static_cast<int64_t>(admitted.size());
  }
  Publish();  // a step may take long
}

void Engine::Impl::UpdatePauses() {
  const Instant now = clock_.Now();
  for (auto& [id, generation] : active_) {
    const bool full = generation->outbox().full();
    if (full == generation->paused_since.has_value()) continue;
    generation->paused_since = full ? std::optional<Instant>(now) : std::nullopt;
    scheduler_->SetPaused(id, full);
  }
}

void Engine::Impl::EndStarved() {
  if (scheduler_->starved().empty()) return;
  // Paused sequences hold pages that come free when their clients read on, or when they are ended.
  for (const auto& [id, generation] : active_) {
    if (generation->paused_since.has_value()) return;
  }
  Fail(scheduler_->starved().back(),
       absl::ResourceExhaustedError(
           "the KV pool ran out of pages beyond the decode reserve; raise kv.memory_bytes or "
           "kv.decode_reserve, or ask for fewer tokens"));
}

void Engine::Impl::ReportLayer(const StepPlan& plan, int layers_done) {
  NoteProgress();
  const Instant now = clock_.Now();
  const double part = static_cast<double>(layers_done) / model_->config().layers;
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto length = static_cast<double>(chunk.end - chunk.begin);
    active_.at(chunk.sequence)
        ->NoteProgress(static_cast<double>(chunk.begin) + part * length, attention_share_, now);
  }
}

void Engine::Impl::Execute(const StepPlan& plan) {
  const Instant start = clock_.Now();
  StepPlan step = plan;
  step.epoch = epoch_;
  std::vector<const Generation*> of_chunk;
  for (const PrefillChunk& chunk : step.chunks)
    of_chunk.push_back(active_.at(chunk.sequence).get());
  const StepControl control{
      .should_stop = [&](int c) { return ShouldStop(*of_chunk[static_cast<size_t>(c)]); },
      .on_layer = [&](int layers_done) { ReportLayer(step, layers_done); }};
  const std::vector<RankStepResult> results = workers_->Run(step, control);
  NoteProgress();
  for (const RankStepResult& result : results) {
    if (!result.status.ok()) return FailStep(step, result.status);
  }
  AccountStep(step, results, Seconds(clock_.Now() - start));
  // A stopped chunk left its layers unfinished: its request ends in the next EndStale, before a
  // plan could use the pages, so committing the others is all there is to do.
  StepPlan done = step;
  const uint64_t stopped = results.front().stopped_mask;
  for (size_t c = done.chunks.size(); c-- > 0;) {
    if ((stopped >> c) & 1) done.chunks.erase(done.chunks.begin() + static_cast<ptrdiff_t>(c));
  }
  scheduler_->Commit(done);
  HandlePrefilled(step, results);
  HandleLogits(done, results);
}

void Engine::Impl::FailStep(const StepPlan& plan, const absl::Status& status) {
  Log(LogLevel::kError, "step failed, the ring forms anew",
      {{"epoch", epoch_}, {"step", plan.step}, {"status", status.ToString()}});
  metrics_.failed_steps.Increment();
  ++epoch_;
  workers_->Reform();
  const absl::Status failed =
      absl::UnavailableError(absl::StrCat("the step was aborted, try again: ", status.ToString()));
  for (const PrefillChunk& chunk : plan.chunks) Fail(chunk.sequence, failed);
  for (const DecodeToken& decode : plan.decodes) Fail(decode.sequence, failed);
}

void Engine::Impl::AccountStep(const StepPlan& plan, const std::vector<RankStepResult>& results,
                               double seconds) {
  metrics_.AddStep(results);
  metrics_.steps.Increment();
  if (!plan.chunks.empty()) metrics_.prefill_s.Increment(seconds);
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    if ((results.front().stopped_mask >> c) & 1) continue;
    metrics_.prefill_tokens.Increment(
        static_cast<double>(plan.chunks[c].end - plan.chunks[c].begin));
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
    rank_totals_[r].busy_s += result.prefill_busy_s + result.decode_busy_s;
    rank_totals_[r].wait_s += result.prefill_wait_s + result.decode_wait_s;
    rank_totals_[r].ring_bytes += static_cast<double>(result.ring_bytes);
  }
}

void Engine::Impl::HandlePrefilled(const StepPlan& plan,
                                   const std::vector<RankStepResult>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    for (const ScoredToken& score : results[r].scores) {
      active_.at(plan.chunks[static_cast<size_t>(score.chunk)].sequence)
          ->AddScore(static_cast<int>(r), score.position, score.logprob);
    }
  }
  const Instant now = clock_.Now();
  const uint64_t stopped = results.front().stopped_mask;
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan.chunks[c];
    Generation& generation = *active_.at(chunk.sequence);
    const bool last = chunk.end == static_cast<int64_t>(generation.request().prompt.size());
    if (!last || ((stopped >> c) & 1)) continue;
    generation.NotePrefilled(now);
    if (generation.max_tokens() == 0 && generation.failure().ok()) Finish(chunk.sequence);
  }
}

void Engine::Impl::HandleLogits(const StepPlan& plan, const std::vector<RankStepResult>& results) {
  std::vector<SequenceId> rows;
  for (const PrefillChunk& chunk : plan.chunks) {
    if (chunk.wants_logits) rows.push_back(chunk.sequence);
  }
  for (const DecodeToken& decode : plan.decodes) rows.push_back(decode.sequence);
  std::vector<float> logits(static_cast<size_t>(model_->config().vocab));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const RankStepResult& result : results) {
      const int64_t n = result.vocab_end - result.vocab_begin;
      std::copy_n(result.logits.begin() + static_cast<int64_t>(i) * n, n,
                  logits.begin() + result.vocab_begin);
    }
    HandleToken(rows[i], logits);
  }
}

void Engine::Impl::HandleToken(SequenceId id, std::span<const float> logits) {
  Generation& generation = *active_.at(id);
  if (!generation.failure().ok()) return;  // EndStale ends it
  const Instant now = clock_.Now();
  const std::optional<Instant> before = generation.last_token_at();
  absl::StatusOr<std::optional<TokenId>> next = generation.Step(logits, now);
  if (!next.ok()) return Fail(id, std::move(next).status());
  if (before.has_value()) {
    metrics_.inter_token_s.Observe(Seconds(now - *before));
  } else {
    metrics_.ttft_s.Observe(Seconds(now - generation.submitted()));
  }
  metrics_.decode_tokens.Increment();
  if (next->has_value()) {
    scheduler_->AppendToken(id, **next);
  } else {
    Finish(id);
  }
}

void Engine::Impl::Finish(SequenceId id) {
  active_.at(id)->Finish(scheduler_->PagesOf(id));
  Forget(id);
}

void Engine::Impl::Fail(SequenceId id, absl::Status status) {
  active_.at(id)->Fail(std::move(status));
  Forget(id);
}

void Engine::Impl::Forget(SequenceId id) {
  const int64_t queued_before = scheduler_->queued();
  const BlockTable freed = scheduler_->Remove(id);
  const int64_t left_queue = queued_before - scheduler_->queued();
  if (options_.poison_freed_pages) workers_->Poison(freed);
  active_.erase(id);
  {
    MutexLock lock(&mutex_);
    queued_ -= left_queue;
  }
  Publish();
  MutexLock lock(&mutex_);
  if (--living_ == 0) idle_.SignalAll();
}

void Engine::Impl::NoteProgress() {
  progress_ns_ = std::chrono::nanoseconds(clock_.Now().time_since_epoch()).count();
}

void Engine::Impl::Publish() {
  for (size_t r = 0; r < rank_totals_.size(); ++r) {
    const int64_t used = scheduler_->pages_used(static_cast<int>(r));
    rank_totals_[r].pages_used = used;
    metrics_.ranks[r].kv_pages_used->Set(static_cast<double>(used));
    metrics_.ranks[r].kv_pages_free->Set(static_cast<double>(scheduler_->pages_total() - used));
  }
  metrics_.running_requests.Set(static_cast<double>(scheduler_->running()));
  MutexLock lock(&mutex_);
  metrics_.queue_length.Set(static_cast<double>(queued_));
  status_.steps = static_cast<int64_t>(metrics_.steps.Value());
  status_.epoch = epoch_;
  status_.draining = draining_;
  status_.ranks = rank_totals_;
}

Engine::Engine() = default;
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::shared_ptr<const Model> model,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       Metrics& metrics, const Clock& clock) {
  RF_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ =
      std::make_unique<Impl>(options, std::move(model), std::move(tokenizer), metrics, clock);
  RF_RETURN_IF_ERROR(engine->impl_->Start());
  return engine;
}

absl::StatusOr<std::shared_ptr<Outbox>> Engine::Submit(Request request,
                                                       std::function<void()> on_ready) {
  return impl_->Submit(std::move(request), std::move(on_ready));
}

void Engine::BeginDrain() { impl_->BeginDrain(); }
bool Engine::WaitIdle(Duration timeout) { return impl_->WaitIdle(timeout); }
EngineStatus Engine::Status() const { return impl_->Status(); }
const EngineInfo& Engine::info() const { return impl_->info(); }
const Model& Engine::model() const { return impl_->model(); }
const Tokenizer& Engine::tokenizer() const { return impl_->tokenizer(); }

}  // namespace ringfill
