// The engine's metrics; docs/metrics.md lists them.
#pragma once

#include <vector>

#include "base/metrics.h"
#include "engine/worker/rank.h"

namespace ringfill {

struct EngineMetrics {
  EngineMetrics(Metrics& metrics, int ranks);

  // Adds one step's figures of every rank.
  void AddStep(const std::vector<RankStepResult>& results);

  struct PerRank {
    Counter* prefill_busy_s;
    Counter* prefill_wait_s;
    Counter* decode_busy_s;
    Counter* decode_wait_s;
    Counter* ring_bytes;
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
  Histogram& ring_round_s;
  Gauge& queue_length;
  Gauge& running_requests;
  std::vector<PerRank> ranks;
};

}  // namespace ringfill
