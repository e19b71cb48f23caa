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
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"
#include "engine/request/event.h"
#include "engine/request/outbox.h"
#include "engine/request/request.h"

namespace ringfill {

inline constexpr int kMaxRanks = 64;
#ifdef NDEBUG
inline constexpr bool kPoisonByDefault = false;
#else
inline constexpr bool kPoisonByDefault = true;
#endif

struct EngineOptions {
  int ranks = 1;               // 1 to kMaxRanks
  int threads = 0;             // compute threads over all ranks; 0: one a core; at least one a rank
  std::optional<DType> dtype;  // unset: bf16 where the CPU has it, else f32
  std::optional<DType> kv_dtype;        // unset: follows dtype
  CpuIsa isa = DetectCpuIsa();          // tests force a lower one
  int stripe_tokens = 64;               // a multiple of page_tokens
  int page_tokens = 64;                 // a multiple of 16
  int64_t kv_memory_bytes = 0;          // over all ranks; 0: room for four full contexts, at most a
                                        // quarter of the machine's memory
  int64_t decode_reserve_tokens = 256;  // reserved beyond the prompt at admission
  int64_t chunk_tokens = 2048;          // prompt tokens a step, over all ranks
  int64_t max_context_tokens = 0;       // 0: the model's trained context
  int64_t max_queued_requests = 64;     // more are refused with RESOURCE_EXHAUSTED
  int64_t max_running_requests = 64;
  size_t outbox_events = 256;
  Duration slow_client_timeout = std::chrono::seconds(60);  // full outbox longer: cancelled
  Duration min_round_timeout = std::chrono::seconds(30);    // floor of every wait for a peer
  bool poison_freed_pages = kPoisonByDefault;               // overwrite freed KV pages with NaN
  // For tests of failure: asked by each rank before each step; a status that is not OK fails it.
  std::function<absl::Status(int rank, uint64_t step)> fault;
  int64_t expanded_weight_bytes = 0;  // budget for expanded layers; at least two layers are kept
};

struct RankStatus {
  int rank = 0;
  int64_t pages_total = 0;
  int64_t pages_used = 0;
  double busy_s = 0;  // computing, since start
  double wait_s = 0;  // waiting for peers, since start
  double ring_bytes = 0;
};

struct EngineStatus {
  int64_t queued = 0;
  int64_t running = 0;
  int64_t steps = 0;
  uint64_t epoch = 1;
  bool draining = false;
  double seconds_since_progress = 0;  // while there is work; else 0
  std::vector<RankStatus> ranks;
};

// What the engine settled on, for logs and GetStatus.
struct EngineInfo {
  int ranks = 0;
  int threads_per_rank = 0;
  DType dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  std::string isa;
  std::string attention_kernel;
  int stripe_tokens = 0;
  int page_tokens = 0;
  int64_t chunk_tokens = 0;
  int64_t max_context_tokens = 0;
  int64_t kv_pages = 0;   // over all ranks
  int64_t kv_bytes = 0;   // over all ranks
  int64_t kv_tokens = 0;  // capacity over all ranks
};

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
  const EngineInfo& info() const;
  const Model& model() const;
  const Tokenizer& tokenizer() const;

 private:
  Engine();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfill
