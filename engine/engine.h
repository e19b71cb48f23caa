// The one entry point: token ids in, events out, over N ranks that share one model and keep the KV
// cache sharded between them.
//
//   engine = Engine::Create(options, model, tokenizer, metrics, clock)
//   stream = engine->Submit(request, on_ready)
//   ... on_ready ... while (event = stream->TryPop()) ...
//
// The engine owns its threads: one scheduler, and per rank a compute lane, a communication lane and
// helpers. Two engines in one process do not disturb each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/engine_status.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"
#include "engine/request/event.h"
#include "engine/request/outbox.h"
#include "engine/request/request.h"
#include "engine/request/request_span.h"
#include "engine/stream/trace.h"

namespace ringfill {

// Thread-safe.
class Engine {
 public:
  // INVALID_ARGUMENT naming the option that does not fit.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::shared_ptr<const Model> model,
                                                        std::shared_ptr<const Tokenizer> tokenizer,
                                                        Metrics& metrics,
                                                        const Clock& clock = Clock::Real());
  // Cancels what is still there (FailedEvent, CANCELLED) and joins all threads.
  ~Engine();

  // Checks and queues. INVALID_ARGUMENT for bad options or a prompt beyond the context;
  // RESOURCE_EXHAUSTED when the KV pool can never hold it or the queue is full; UNAVAILABLE when
  // draining. Nothing is allocated then. Quick: never waits for a step. `on_ready`: see Outbox; it
  // may run before Submit has returned.
  // The consumer drains the stream until Done or Failed, or calls Close, which cancels.
  absl::StatusOr<std::shared_ptr<Outbox>> Submit(Request request, std::function<void()> on_ready);

  // Refuses new requests from now on.
  void BeginDrain();
  // Waits until nothing is queued or running, at most `timeout`. True when empty.
  bool WaitIdle(Duration timeout);

  EngineStatus Status() const;
  // Sets the gauges that move while a step runs (how long it has taken, who waits). Call it a few
  // times a second.
  void RefreshGauges() const;
  // Starts or ends the recording of what every rank does, from the next step on.
  void SetTracing(bool on);
  // What was recorded since the last call, by rank; bounded.
  std::vector<std::vector<TraceSpan>> TakeTrace();
  // Likewise the phases of requests that ended.
  std::vector<RequestSpan> TakeRequestSpans();
  // The phase that every request is in, which is open, with `now` as its end.
  std::vector<RequestSpan> OpenRequestSpans(Instant now) const;
  const EngineInfo& info() const;
  const Model& model() const;
  const Tokenizer& tokenizer() const;

 private:
  Engine();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfill
