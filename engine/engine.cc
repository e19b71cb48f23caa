#include "engine/engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/machine.h"
#include "engine/choose_backend.h"
#include "engine/compute/attention/kv_layout.h"
#include "engine/cost/measured_chooser.h"
#include "engine/engine_metrics.h"
#include "engine/layout/slot_map.h"
#include "engine/leader.h"
#include "engine/model/digest.h"
#include "engine/replay/plan_recorder.h"
#include "engine/request/generation.h"
#include "engine/request/inbox.h"
#include "engine/schedule/rule_chooser.h"
#include "engine/schedule/scheduler.h"
#include "engine/worker/thread_workers.h"

namespace ringfill {
namespace {

ThreadWorkersOptions ThreadOptionsOf(const EngineInfo& info, const EngineOptions& options) {
  ThreadWorkersOptions out;
  out.model = {.dtype = info.dtype,
               .kv_dtype = info.kv_dtype,
               .isa = options.isa,
               .page_tokens = options.page_tokens,
               .expanded_weight_bytes = options.expanded_weight_bytes};
  return out;
}

}  // namespace

// Members are destroyed in the reverse of this order: the leader stops first.
class Engine::Impl {
 public:
  Impl(const EngineOptions& options, std::shared_ptr<const Model> model,
       std::shared_ptr<const Tokenizer> tokenizer, Metrics& metrics, const Clock& clock)
      : options_(options),
        model_(std::move(model)),
        tokenizer_(std::move(tokenizer)),
        clock_(clock),
        metrics_(metrics, options.ranks),
        inbox_(options.max_queued_requests) {}

  absl::Status Start();
  absl::StatusOr<std::shared_ptr<Outbox>> Submit(Request request, std::function<void()> on_ready);

  Inbox& inbox() { return inbox_; }
  Leader& leader() { return *leader_; }
  const Clock& clock() const { return clock_; }
  const EngineInfo& info() const { return info_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  // Ranks are processes with GPUs, whose pages are known when they have joined.
  bool GpusElsewhere() const { return options_.workers && options_.backend == Backend::kCuda; }
  absl::Status Settle();
  absl::Status MakeWorkers();
  absl::Status MakeChooser();
  void MakeScheduler();
  absl::Status MakeRecorder();

  EngineOptions options_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Clock& clock_;
  EngineMetrics metrics_;
  EngineInfo info_;
  Inbox inbox_;
  std::optional<CudaBackend> gpus_;  // until workers_ take it
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<WayChooser> rule_;
  std::unique_ptr<MeasuredChooser> measured_;  // null unless asked for
  std::unique_ptr<WayChooser> chooser_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<PlanRecorder> recorder_;  // null unless asked for
  std::unique_ptr<Leader> leader_;
};

absl::Status Engine::Impl::Settle() {
  RF_RETURN_IF_ERROR(CheckOptions(options_));
  if (GpusElsewhere()) {
    RF_RETURN_IF_ERROR(CheckGpuOptions(options_));
    const GpuPages unknown;
    return SettleOptions(model_->config(), options_, info_, &unknown);
  }
  RF_ASSIGN_OR_RETURN(gpus_, ChooseBackend(model_, options_));
  if (!gpus_.has_value()) return SettleOptions(model_->config(), options_, info_);
  const GpuPages pages{gpus_->pages_per_rank, gpus_->description};
  return SettleOptions(model_->config(), options_, info_, &pages);
}

absl::Status Engine::Impl::MakeWorkers() {
  const bool fits_cores = info_.threads_per_rank * options_.ranks <= UsableCores();
  const WorkersSpec spec{.ranks = options_.ranks,
                         .threads_per_rank = info_.threads_per_rank,
                         .threads_settled_here = info_.threads_settled_here,
                         .spin_rounds = fits_cores ? kSpinRounds : 0,
                         .pages_per_rank = info_.kv_pages / options_.ranks,
                         .min_round_timeout = options_.min_round_timeout,
                         .gather_bytes = options_.gather_bytes,
                         .strict = options_.strict,
                         .fault = options_.fault,
                         .clock = &clock_};
  if (options_.workers) {
    RF_ASSIGN_OR_RETURN(workers_, options_.workers(spec, info_));
    if (GpusElsewhere()) {
      SettleGpuPool(model_->config(), options_, workers_->gpu_pages(), info_);
    }
    return absl::OkStatus();
  }
  ThreadWorkersOptions threads = ThreadOptionsOf(info_, options_);
  if (gpus_.has_value()) {
    threads.make_backend = [this](const WorkersSpec&) { return std::move(gpus_->backend); };
  }
  RF_ASSIGN_OR_RETURN(workers_, MakeThreadWorkers(spec, model_, threads));
  return absl::OkStatus();
}

absl::Status Engine::Impl::MakeChooser() {
  rule_ = std::make_unique<RuleChooser>();
  if (options_.measure || options_.weigh_by_speed) {
    const ModelShape shape = ModelShape::Of(
        *model_, static_cast<int64_t>(DTypeBytes(info_.kv_dtype)), options_.page_tokens);
    RF_ASSIGN_OR_RETURN(Figures figures, workers_->Measure(shape));
    Log(LogLevel::kInfo, "the ranks were measured", {{"figures", DescribeFigures(figures)}});
    metrics_.SetRates(figures);
    if (options_.weigh_by_speed) {
      options_.rank_weights.clear();
      for (const DeviceFigures& device : figures.devices) {
        options_.rank_weights.push_back(device.product_flops_per_s);
      }
    }
    CostOptions cost;
    cost.shape = shape;
    cost.gather_bytes = static_cast<int64_t>(options_.gather_bytes);
    measured_ = std::make_unique<MeasuredChooser>(cost, std::move(figures));
  }
  const WayChooser& otherwise =
      options_.measure ? static_cast<const WayChooser&>(*measured_) : *rule_;
  chooser_ = std::make_unique<ForcedChooser>(options_.mode, options_.strategy, otherwise);
  return absl::OkStatus();
}

void Engine::Impl::MakeScheduler() {
  scheduler_ = std::make_unique<Scheduler>(
      options_.rank_weights.empty() ? HealthySlotMap(options_.ranks)
                                    : WeightedSlotMap(options_.rank_weights),
      options_.ranks,
      SchedulerOptions{.layout = options_.layout,
                       .stripe_tokens = options_.stripe_tokens,
                       .page_tokens = options_.page_tokens,
                       .pages_per_rank = info_.kv_pages / options_.ranks,
                       .chunk_tokens = options_.chunk_tokens,
                       .decode_reserve_tokens = options_.decode_reserve_tokens,
                       .max_running = options_.max_running_requests,
                       .strict = options_.strict,
                       .list_freed = options_.poison_freed_pages},
      *chooser_);
}

absl::Status Engine::Impl::MakeRecorder() {
  if (options_.plan_log_path.empty()) return absl::OkStatus();
  const ModelConfig& config = model_->config();
  const KvBlockShape shape{info_.kv_dtype, config.head_dim, info_.page_tokens};
  PlanLogHeader header;
  header.model_name = config.name;
  header.model_digest = ModelDigest(model_->file());
  header.geometry = {config.layers, config.kv_heads, info_.page_tokens, shape.BlockBytes()};
  header.vocab = config.vocab;
  header.max_positions = info_.max_context_tokens;
  header.pages_per_rank = info_.kv_pages / options_.ranks;
  header.gather_bytes = static_cast<int64_t>(options_.gather_bytes);
  header.ranks = options_.ranks;
  header.dtype = info_.dtype;
  header.kv_dtype = info_.kv_dtype;
  header.isa = options_.isa;
  header.strict = info_.strict;
  absl::StatusOr<std::unique_ptr<PlanRecorder>> started = PlanRecorder::Start(
      {.path = options_.plan_log_path, .max_bytes = options_.plan_log_max_bytes}, header);
  if (!started.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("debug.plan_log: ", std::string(started.status().message())));
  }
  recorder_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status Engine::Impl::Start() {
  RF_RETURN_IF_ERROR(Settle());
  RF_RETURN_IF_ERROR(MakeWorkers());
  RF_RETURN_IF_ERROR(MakeChooser());
  MakeScheduler();
  metrics_.SetPool({.ranks = options_.ranks,
                    .page_tokens = info_.page_tokens,
                    .tokens = info_.kv_tokens,
                    .bytes = info_.kv_bytes});
  RF_RETURN_IF_ERROR(MakeRecorder());
  leader_ = std::make_unique<Leader>(LeaderParts{.options = options_,
                                                 .model = *model_,
                                                 .clock = clock_,
                                                 .metrics = metrics_,
                                                 .inbox = inbox_,
                                                 .scheduler = *scheduler_,
                                                 .measured = measured_.get(),
                                                 .workers = *workers_,
                                                 .recorder = recorder_.get()});
  return absl::OkStatus();
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
  const bool was_empty = inbox_.counts().queued + inbox_.counts().running == 0;
  RF_ASSIGN_OR_RETURN(const int64_t ahead, inbox_.Reserve());
  if (was_empty) {
    leader_->NoteProgress();
    leader_->NoteStepEnd();
  }
  // The first event, before the leader knows of the request and could push others.
  outbox->Push(AcceptedEvent{prompt_tokens, 0, ahead});
  inbox_.Put(std::move(generation));
  return outbox;
}

Engine::Engine() = default;
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::shared_ptr<const Model> model,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       Metrics& metrics, const Clock& clock) {
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

void Engine::BeginDrain() { impl_->inbox().BeginDrain(); }
bool Engine::WaitIdle(Duration timeout) {
  return impl_->inbox().WaitIdle(std::chrono::steady_clock::now() + timeout);
}
EngineStatus Engine::Status() const { return impl_->leader().Status(); }
void Engine::RefreshGauges() const { impl_->leader().RefreshGauges(); }
void Engine::SetTracing(bool on) { impl_->leader().RequestTrace(on); }
std::vector<std::vector<TraceSpan>> Engine::TakeTrace() { return impl_->leader().TakeTrace(); }
std::vector<RequestSpan> Engine::TakeRequestSpans() { return impl_->leader().TakeRequestSpans(); }

std::vector<RequestSpan> Engine::OpenRequestSpans(Instant now) const {
  return impl_->leader().OpenRequestSpans(now);
}
const EngineInfo& Engine::info() const { return impl_->info(); }
const Model& Engine::model() const { return impl_->model(); }
const Tokenizer& Engine::tokenizer() const { return impl_->tokenizer(); }

}  // namespace ringfill
