#include "server/app/daemon.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "engine/request/retry.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/app/engine_options.h"
#include "server/app/ring_workers.h"
#include "server/app/watcher.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/rpc/engine_call.h"
#include "server/rpc/service.h"
#include "server/text.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;

constexpr auto kWatchPeriod = milliseconds(250);
constexpr auto kTracePeriod = milliseconds(100);
constexpr auto kDrainPoll = milliseconds(50);  // how soon a second signal is seen
constexpr auto kLastCallsGrace = milliseconds(500);
// Readiness: no step for so many round timeouts, and at least a minute (a step over a long context
// takes its time).
constexpr double kStalledRounds = 2;
constexpr double kMinStalledSeconds = 60;
// Clients may ping this often, also without a call: a long prefill is silent.
constexpr int kMinPingIntervalMs = 10000;
// The server's own pings find peers that vanished without a word.
constexpr int kKeepaliveMs = 60000;
constexpr int kKeepaliveTimeoutMs = 20000;
// What clients can keep open for nothing: connections that never speak HTTP/2, and idle ones. Idle
// channels reconnect on their next call.
constexpr int kHandshakeTimeoutMs = 10000;
constexpr int kMaxIdleMs = 30 * 60 * 1000;
constexpr int kMaxHeaderBytes = 16384;
// Requests in memory while they arrive: a few of the largest, and a floor for many small ones.
constexpr int64_t kQuotaMessages = 4;
constexpr int64_t kMinQuotaBytes = int64_t{256} << 20;

// Both apply to every server built afterwards, in the whole process.
void SetUpGrpcOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

Duration SlowClientTimeout(const Config& config) {
  return FromSeconds(config.server_slow_client_timeout_s);
}

std::string WithPort(const std::string& listen, int port) {
  return Concat(listen.substr(0, listen.rfind(':')), ":", port);
}

void SetServerLimits(const Config& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(config.server_max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(config.server_max_concurrent_streams));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  // Without this, a second daemon would share the port instead of failing.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("ringfilld");
  quota.Resize(static_cast<size_t>(
      std::max(kMinQuotaBytes, kQuotaMessages * config.server_max_message_bytes)));
  builder.SetResourceQuota(quota);
  // Only health and reflection use the synchronous API.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
}

}  // namespace

// Members are destroyed in the reverse of this order, which is the order of stopping.
class Daemon::Impl {
 public:
  Impl(const Config& config, ServedModel model)
      : config_(config), model_(std::move(model)), server_metrics_(metrics_) {}

  absl::Status Start();
  void Shutdown(Duration grace, const std::function<bool()>& hurry);

  const std::string& grpc_address() const { return grpc_address_; }
  std::string metrics_address() const { return endpoint_ ? endpoint_->address() : ""; }
  const Engine& engine() const { return *engine_; }
  double stalled_s() const {
    return std::max(kMinStalledSeconds,
                    kStalledRounds * 1e-3 * static_cast<double>(config_.ring_min_round_timeout_ms));
  }

 private:
  absl::Status StartEngine();
  absl::Status StartTracer();
  void StartServices();
  absl::Status StartServer();
  void StartWatcher();
  void SetServing(bool serving);
  void LogStarted() const;

  const Clock& clock_ = Clock::Real();
  const Config config_;
  const ServedModel model_;
  Metrics metrics_;
  ServerMetrics server_metrics_;
  WorkerMetrics worker_metrics_{metrics_};
  OpenCalls calls_;
  // Calls use the services until their end, and the queues' closures may be the last to hold one.
  std::unique_ptr<RpcServices> services_;
  std::unique_ptr<PromptReader> prompts_;
  WorkQueue conversions_{kConversionThreads, kMaxWaitingConversions};
  WorkQueue events_{1, kMaxOpenCalls};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tracer> tracer_;
  std::unique_ptr<RingfillService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string grpc_address_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::unique_ptr<Readiness> readiness_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<Watcher> trace_watcher_;
};

absl::Status Daemon::Impl::Start() {
  RF_RETURN_IF_ERROR(StartEngine());
  RF_RETURN_IF_ERROR(StartTracer());
  StartServices();
  RF_RETURN_IF_ERROR(StartServer());
  if (!config_.metrics_listen.empty()) {
    RF_ASSIGN_OR_RETURN(endpoint_, MetricsEndpoint::Start(config_.metrics_listen, metrics_));
  }
  StartWatcher();
  LogStarted();
  return absl::OkStatus();
}

absl::Status Daemon::Impl::StartEngine() {
  for (const std::string& warning : ConfigWarnings(config_, model_.model->config())) {
    Log(LogLevel::kWarning, warning);
  }
  RF_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(config_));
  if (config_.ring_transport == "processes") {
    options.workers_elsewhere = !config_.ring_start_workers;
    RF_ASSIGN_OR_RETURN(options.workers,
                        MakeWorkersFactory(config_, options, model_.model, worker_metrics_));
  }
  RF_ASSIGN_OR_RETURN(engine_,
                      Engine::Create(options, model_.model, model_.tokenizer, metrics_, clock_));
  return absl::OkStatus();
}

absl::Status Daemon::Impl::StartTracer() {
  std::unique_ptr<TraceFile> file;
  if (!config_.trace_path.empty()) {
    absl::StatusOr<std::unique_ptr<TraceFile>> created =
        TraceFile::Create(config_.trace_path, config_.trace_max_spans);
    if (!created.ok()) {
      return absl::InvalidArgumentError(Concat("trace.path: ", created.status().message()));
    }
    file = *std::move(created);
  }
  tracer_ = std::make_unique<Tracer>(
      TraceSource{.set_tracing = [this](bool on) { engine_->SetTracing(on); },
                  .busy = [this] { return engine_->Status().running > 0; },
                  .take = [this] { return engine_->TakeTrace(); },
                  .take_requests = [this] { return engine_->TakeRequestSpans(); },
                  .open_requests = [this](Instant now) { return engine_->OpenRequestSpans(now); },
                  .dropped = [this] { return engine_->Status().trace_dropped; }},
      clock_, std::move(file), SlowClientTimeout(config_));
  return absl::OkStatus();
}

void Daemon::Impl::StartServices() {
  const RequestLimits limits = {.vocab = model_.model->config().vocab,
                                .max_context_tokens = engine_->info().max_context_tokens};
  prompts_ = std::make_unique<PromptReader>(*model_.tokenizer, model_.chat, limits);
  services_ = std::unique_ptr<RpcServices>(
      new RpcServices{.engine = *engine_,
                      .prompts = *prompts_,
                      .metrics = server_metrics_,
                      .calls = calls_,
                      .conversions = conversions_,
                      .events = events_,
                      .tracer = *tracer_,
                      .clock = clock_,
                      .started = clock_.Now(),
                      .write_stall_limit = SlowClientTimeout(config_)});
}

absl::Status Daemon::Impl::StartServer() {
  SetUpGrpcOnce();
  service_ = std::make_unique<RingfillService>(*services_);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config_.server_listen, grpc::InsecureServerCredentials(), &port);
  SetServerLimits(config_, builder);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return absl::InvalidArgumentError(Concat("server.listen: cannot listen on ",
                                             config_.server_listen,
                                             " (is the address local, and the port free?)"));
  }
  grpc_address_ = WithPort(config_.server_listen, port);
  SetServing(true);
  return absl::OkStatus();
}

void Daemon::Impl::StartWatcher() {
  readiness_ = std::make_unique<Readiness>(stalled_s(), [this](bool ready) {
    const bool formed = engine_->Status().ring_formed;
    Log(LogLevel::kWarning, ready    ? "ready again"
                            : formed ? "not ready: the engine has stalled"
                                     : "not ready: the ranks form no ring");
    SetServing(ready);
  });
  watcher_ = std::make_unique<Watcher>(kWatchPeriod, [this] {
    engine_->RefreshGauges();
    const EngineStatus status = engine_->Status();
    readiness_->Update(status.ring_formed ? status.seconds_since_progress
                                          : std::numeric_limits<double>::infinity());
    const Instant now = clock_.Now();
    for (const std::shared_ptr<EngineCall>& call : calls_.All()) call->CheckStall(now);
  });
  trace_watcher_ = std::make_unique<Watcher>(kTracePeriod, [this] { tracer_->Poll(); });
}

void Daemon::Impl::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus(std::string(v1::Ringfill::service_full_name()), serving);
  health->SetServingStatus("", serving);
}

void Daemon::Impl::LogStarted() const {
  const EngineInfo& info = engine_->info();
  Log(LogLevel::kInfo, "started",
      {{"grpc", grpc_address_},
       {"metrics", metrics_address()},
       {"model", model_.model->config().name},
       {"weights", model_.model->weight_summary()},
       {"ranks", info.ranks},
       {"threads_per_rank", info.threads_per_rank},
       {"compute_dtype", DTypeName(info.dtype)},
       {"kv_dtype", DTypeName(info.kv_dtype)},
       {"isa", info.isa},
       {"backend", info.backend},
       {"gpus", info.gpus},
       {"attention_kernel", info.attention_kernel},
       {"numerics", info.strict ? "strict" : "fast"},
       {"layout", LayoutName(info.layout)},
       {"transport", info.transport},
       {"stripe_tokens", info.stripe_tokens},
       {"page_tokens", info.page_tokens},
       {"chunk_tokens", info.chunk_tokens},
       {"max_context_tokens", info.max_context_tokens},
       {"kv_tokens", info.kv_tokens},
       {"kv_bytes", info.kv_bytes}});
}

void Daemon::Impl::Shutdown(Duration grace, const std::function<bool()>& hurry) {
  if (server_ == nullptr) return;
  watcher_.reset();
  trace_watcher_.reset();                        // a trace under way ends with the server
  server_->GetHealthCheckService()->Shutdown();  // NOT_SERVING from here on
  engine_->BeginDrain();
  const Instant end = clock_.Now() + grace;
  const auto wait = [&](const auto& idle) {
    while (!idle(std::min<Duration>(kDrainPoll, std::max(Duration(0), end - clock_.Now())))) {
      if (clock_.Now() >= end || hurry()) return false;
    }
    return true;
  };
  const bool finished = wait([&](Duration limit) { return engine_->WaitIdle(limit); }) &&
                        wait([&](Duration limit) { return calls_.WaitEmpty(limit); });
  if (!finished) {
    const std::vector<std::shared_ptr<EngineCall>> rest = calls_.All();
    Log(LogLevel::kWarning, "drain cut short", {{"calls", rest.size()}});
    for (const std::shared_ptr<EngineCall>& call : rest) {
      call->End(WithRetryAfter(
          absl::UnavailableError("the daemon is shutting down; try another or later"),
          kRetryAfterRestart));
    }
  }
  tracer_->Close();
  server_->Shutdown(std::chrono::system_clock::now() + kLastCallsGrace);
  server_->Wait();
  server_.reset();
  // gRPC is done with all calls; queued closures and the engine's notices may hold some still.
  calls_.WaitEmpty(Duration::max());
}

Daemon::Daemon() = default;

Daemon::~Daemon() {
  if (impl_ != nullptr) Shutdown(Duration(0), [] { return true; });
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, ServedModel model) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  daemon->impl_ = std::make_unique<Impl>(config, std::move(model));
  RF_RETURN_IF_ERROR(daemon->impl_->Start());
  return daemon;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config) {
  RF_ASSIGN_OR_RETURN(ServedModel model, LoadServedModel(config.model_path));
  return Start(config, std::move(model));
}

const std::string& Daemon::grpc_address() const { return impl_->grpc_address(); }
std::string Daemon::metrics_address() const { return impl_->metrics_address(); }
const Engine& Daemon::engine() const { return impl_->engine(); }
double Daemon::stalled_s() const { return impl_->stalled_s(); }

void Daemon::Shutdown(Duration grace, const std::function<bool()>& hurry) {
  impl_->Shutdown(grace, hurry);
}

}  // namespace ringfill
