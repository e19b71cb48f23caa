// An engine with its model and tokenizer, and a way to run requests to their end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/worker/thread_workers.h"
#include "tests/testing/load_model.h"

namespace ringfill {

// Everything a request's client saw.
struct Outcome {
  absl::Status status;  // OK when Done came
  std::vector<AcceptedEvent> accepted;
  std::vector<ProgressEvent> progress;
  std::vector<TokenEvent> tokens;
  DoneEvent done;

  std::vector<TokenId> ids() const;
  std::string text() const;  // of tokens and Done
};

// One request in flight. Waits for its events with a generous hang limit, past which the process
// ends with a message.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Start(Engine& engine, Request request);
  ~Client();

  // The next event, waiting for it.
  RequestEvent Next();
  // Reads on until Done or Failed; what Next() has read is in the outcome too.
  Outcome Finish();
  bool ended() const { return ended_; }
  Outbox& outbox() { return *outbox_; }

 private:
  struct Signal;
  Client() = default;
  void Note(const RequestEvent& event);
  std::shared_ptr<Signal> signal_;
  std::shared_ptr<Outbox> outbox_;
  Outcome outcome_;
  bool ended_ = false;
};

class EngineRunner {
 public:
  // A factory of thread workers with streams or a transport of the test's choice. `model` as in the
  // constructor; `options` as the engine's are.
  static WorkersFactory ThreadsWith(std::shared_ptr<const Model> model,
                                    const EngineOptions& options,
                                    std::function<void(ThreadWorkersOptions&)> change);

  EngineRunner(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
               const EngineOptions& options);
  // Loads a model file; aborts the test process when that fails.
  EngineRunner(const std::string& model_path, const EngineOptions& options);

  Engine& engine() { return *engine_; }
  Metrics& metrics() { return *metrics_; }
  // Submits and reads to the end; a refused request gives its status.
  Outcome Run(Request request);
  // KV pages in use over all ranks, once the engine is idle.
  int64_t PagesUsedWhenIdle();

 private:
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ringfill
