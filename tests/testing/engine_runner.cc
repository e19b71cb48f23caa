#include "tests/testing/engine_runner.h"

#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/mutex.h"

namespace ringfill {
namespace {

constexpr Duration kHangLimit = std::chrono::minutes(5);

}  // namespace

struct Client::Signal {
  Mutex mutex;
  CondVar changed;
  bool ready ABSL_GUARDED_BY(mutex) = false;
};

std::vector<TokenId> Outcome::ids() const {
  std::vector<TokenId> out;
  for (const TokenEvent& token : tokens) out.push_back(token.id);
  return out;
}

std::string Outcome::text() const {
  std::string out;
  for (const TokenEvent& token : tokens) out += token.text;
  return out + done.text;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Start(Engine& engine, Request request) {
  std::unique_ptr<Client> client(new Client());
  client->signal_ = std::make_shared<Signal>();
  RF_ASSIGN_OR_RETURN(client->outbox_,
                      engine.Submit(std::move(request), [signal = client->signal_] {
                        MutexLock lock(&signal->mutex);
                        signal->ready = true;
                        signal->changed.Signal();
                      }));
  return client;
}

Client::~Client() {
  if (outbox_ != nullptr) outbox_->Close();
}

RequestEvent Client::Next() {
  while (true) {
    if (std::optional<RequestEvent> event = outbox_->TryPop()) {
      Note(*event);
      return *std::move(event);
    }
    const Instant until = Clock::Real().Now() + kHangLimit;
    MutexLock lock(&signal_->mutex);
    while (!signal_->ready) {
      if (!signal_->changed.WaitUntil(&signal_->mutex, until)) {
        std::fprintf(stderr, "no event came within the hang limit\n");
        std::abort();
      }
    }
    signal_->ready = false;
  }
}

void Client::Note(const RequestEvent& event) {
  if (const auto* e = std::get_if<AcceptedEvent>(&event)) outcome_.accepted.push_back(*e);
  if (const auto* e = std::get_if<ProgressEvent>(&event)) outcome_.progress.push_back(*e);
  if (const auto* e = std::get_if<TokenEvent>(&event)) outcome_.tokens.push_back(*e);
  if (const auto* e = std::get_if<FailedEvent>(&event)) outcome_.status = e->status;
  if (const auto* e = std::get_if<DoneEvent>(&event)) outcome_.done = *e;
  ended_ = std::holds_alternative<FailedEvent>(event) || std::holds_alternative<DoneEvent>(event);
}

Outcome Client::Finish() {
  while (!ended_) Next();
  return outcome_;
}

EngineRunner::EngineRunner(std::shared_ptr<const Model> model,
                           std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options)
    : metrics_(std::make_unique<Metrics>()) {
  auto engine = Engine::Create(options, std::move(model), std::move(tokenizer), *metrics_);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().ToString().c_str());
    std::abort();
  }
  engine_ = *std::move(engine);
}

EngineRunner::EngineRunner(const std::string& model_path, const EngineOptions& options)
    : EngineRunner(LoadModelOrDie(model_path), LoadTokenizerOrDie(*LoadModelOrDie(model_path)),
                   options) {}

WorkersFactory EngineRunner::ThreadsWith(std::shared_ptr<const Model> model,
                                         const EngineOptions& options,
                                         std::function<void(ThreadWorkersOptions&)> change) {
  return [model, isa = options.isa, expanded = options.expanded_weight_bytes, change](
             const WorkersSpec& spec, const EngineInfo& info) {
    ThreadWorkersOptions threads;
    threads.model = {.dtype = info.dtype,
                     .kv_dtype = info.kv_dtype,
                     .isa = isa,
                     .page_tokens = info.page_tokens,
                     .expanded_weight_bytes = expanded};
    change(threads);
    return MakeThreadWorkers(spec, model, threads);
  };
}

Outcome EngineRunner::Run(Request request) {
  auto client = Client::Start(*engine_, std::move(request));
  if (!client.ok()) {
    Outcome out;
    out.status = client.status();
    return out;
  }
  return (*client)->Finish();
}

int64_t EngineRunner::PagesUsedWhenIdle() {
  RF_CHECK(engine_->WaitIdle(std::chrono::minutes(5)));
  int64_t used = 0;
  for (const RankStatus& rank : engine_->Status().ranks) used += rank.pages_used;
  return used;
}

}  // namespace ringfill
