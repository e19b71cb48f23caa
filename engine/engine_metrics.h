// The engine's metrics; docs/metrics.md lists them.
#pragma once

#include <array>
#include <vector>

#include "base/metrics.h"
#include "engine/cost/figures.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/step_result.h"

namespace ringfill {

struct EngineMetrics {
  EngineMetrics(Metrics& metrics, int ranks);

  // Adds one step's figures of every rank.
  void AddStep(const std::vector<RankStepResult>& results);
  // Prompt tokens that were computed in one way.
  void AddWay(TokenMode mode, RingStrategy strategy, int64_t tokens);
  // Ranks beyond `figures` have no rate.
  void SetRates(const Figures& figures);
  // KV pages of a rank.
  void SetPages(size_t rank, int64_t used, int64_t total);

  struct PerRank {
    Counter* prefill_busy_s;
    Counter* prefill_wait_s;
    Counter* decode_busy_s;
    Counter* decode_wait_s;
    Counter* ring_bytes;
    Counter* transfer_s;
    Counter* hidden_s;
    Counter* product_rows;
    Counter* attention_pairs;
    Counter* operations;
    Gauge* measured_rate;
    Gauge* kv_pages_free;
    Gauge* kv_pages_used;
  };

  Histogram& ttft_s;
  Histogram& inter_token_s;
  Counter& prefill_tokens;
  Counter& prefill_s;
  Counter& decode_tokens;
  Counter& steps;
  Counter& failed_steps;
  Counter& recomputed_tokens;
  Histogram& ring_round_s;
  Histogram& imbalance;
  Histogram& measured_over_predicted;
  Gauge& queue_length;
  Gauge& running_requests;
  Gauge& epoch;
  Gauge& ring_size;
  std::vector<PerRank> ranks;
  // [mode][strategy]; replicated tokens have no strategy and count in its first.
  std::array<std::array<Counter*, kRingStrategies>, kTokenModes> way_tokens{};
};

}  // namespace ringfill
