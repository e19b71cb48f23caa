// The engine's metrics; docs/metrics.md lists them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/cost/figures.h"
#include "engine/request/event.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/step_result.h"

namespace ringfill {

// What a step carried.
enum class StepKind { kPrefill, kDecode, kMixed };
inline constexpr int kStepKinds = 3;

// Where a value that is not finite showed first.
enum class NonFiniteStage { kAttention, kProducts, kOutput };
inline constexpr int kNonFiniteStages = 3;

// The KV cache of all ranks together, as configured.
struct PoolFigures {
  int ranks = 0;
  int page_tokens = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

// Thread-safe. Every series exists from the start.
struct EngineMetrics {
  EngineMetrics(Metrics& metrics, int ranks);

  // Adds one step's figures of every rank.
  void AddStep(const std::vector<RankStepResult>& results);
  // A step of `plan` that took `seconds`.
  void AddPlan(const StepPlan& plan, double seconds);
  // A request that waited for `queue_s` until its first step.
  void AddAdmitted(double queue_s, size_t prompt_tokens);
  // One that ended as it should. `prefill_only`: it asked for no token.
  void AddFinished(bool prefill_only, FinishReason reason, int64_t generated, double decode_s);
  void SetPool(const PoolFigures& pool);
  // Prompt tokens that were computed in one way.
  void AddWay(TokenMode mode, RingStrategy strategy, int64_t tokens);
  // Ranks beyond `figures` have no rate.
  void SetRates(const Figures& figures);
  // KV pages of a rank.
  void SetPages(size_t rank, int64_t used, int64_t total);
  // A rank that the ring lost has no memory.
  void SetGone(size_t rank);
  // Of the fullest rank, which is the one that makes requests wait.
  void SetPagesUsage(double ratio) { kv_usage.Set(ratio); }

  struct PerRank {
    Counter* prefill_busy_s;
    Counter* prefill_wait_s;
    Counter* decode_busy_s;
    Counter* decode_wait_s;
    Counter* ring_bytes;
    Counter* transfer_s;
    Counter* hidden_s;
    std::array<Counter*, kCommKinds> rounds;
    Counter* gather_bytes;
    Counter* merged_states;
    Counter* empty_states;
    std::array<Gauge*, kMemoryPools> memory;
    Counter* product_rows;
    Counter* attention_pairs;
    Counter* operations;
    Gauge* measured_rate;
    Gauge* kv_pages_free;
    Gauge* kv_pages_used;
  };

  Histogram& ttft_s;
  Histogram& inter_token_s;
  Histogram& queue_time_s;
  Histogram& prefill_time_s;
  Histogram& decode_time_s;
  Histogram& prompt_tokens;
  Histogram& generation_tokens;
  Histogram& step_prefill_tokens;
  Histogram& step_decode_tokens;
  Counter& prefill_tokens;
  Counter& prefill_s;
  Counter& decode_tokens;
  Counter& steps;
  Counter& failed_steps;
  Counter& recomputed_tokens;
  Histogram& ring_round_s;
  Histogram& all_gather_s;
  Histogram& imbalance;
  Histogram& measured_over_predicted;
  Gauge& queue_length;
  Gauge& running_requests;
  Gauge& oldest_queued_s;
  Gauge& since_progress_s;
  Gauge& since_step_s;
  Gauge& kv_usage;
  Gauge& kv_capacity_tokens;
  Gauge& kv_capacity_bytes;
  Gauge& kv_page_tokens;
  Gauge& configured_ranks;
  Gauge& epoch;
  Gauge& ring_size;
  std::array<Histogram*, kStepKinds> step_s{};
  std::array<Counter*, kNonFiniteStages> nonfinite_requests{};
  Counter* stopped_requests;
  Counter* length_requests;
  Counter* prefill_requests;
  std::vector<PerRank> ranks;
  // [mode][strategy]; replicated tokens have no strategy and count in its first.
  std::array<std::array<Counter*, kRingStrategies>, kTokenModes> way_tokens{};

 private:
  static PerRank AddRank(Metrics& m, const std::string& rank);
  void AddWays(Metrics& m);
  void AddCommunication(PerRank& rank, const RankStepResult& result);
};

}  // namespace ringfill
