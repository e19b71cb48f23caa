#include "engine/engine_metrics.h"

#include <algorithm>
#include <string>

namespace ringfill {
namespace {

// Long prompts take minutes: buckets reach an hour.
const std::vector<double> kTtftBuckets = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,    2.5,  5,   10,
                                          20,   40,    60,   120, 300,  600, 1200, 2400, 3600};
const std::vector<double> kInterTokenBuckets = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15,
                                                0.3,   0.6,    1.2,   2.5,  5,    10,   30,   60};
const std::vector<double> kRoundBuckets = {0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01,
                                           0.03,    0.1,     0.3,    1,      3,     10,    30};
const std::vector<double> kPredictionBuckets = {0.25, 0.5,  0.7, 0.8, 0.9, 0.95, 1.05,
                                                1.1,  1.25, 1.5, 2,   4,   10};
const std::vector<double> kImbalanceBuckets = {1.01, 1.03, 1.05, 1.1, 1.2, 1.5, 2, 4, 8, 64};

}  // namespace

EngineMetrics::EngineMetrics(Metrics& m, int rank_count)
    : ttft_s(m.AddHistogram("ringfill_time_to_first_token_seconds",
                            "Arrival of a request to its first token", kTtftBuckets)),
      inter_token_s(m.AddHistogram("ringfill_inter_token_seconds",
                                   "Time between two tokens of a request", kInterTokenBuckets)),
      prefill_tokens(m.AddCounter("ringfill_prefill_tokens_total", "Prompt tokens computed")),
      prefill_s(m.AddCounter("ringfill_prefill_seconds_total",
                             "Wall time of steps that carried prompt tokens")),
      decode_tokens(m.AddCounter("ringfill_decode_tokens_total", "Tokens generated")),
      steps(m.AddCounter("ringfill_steps_total", "Steps executed")),
      failed_steps(m.AddCounter("ringfill_failed_steps_total",
                                "Steps that failed and made the ring form anew")),
      recomputed_tokens(m.AddCounter("ringfill_recomputed_tokens_total",
                                     "Tokens whose KV was computed again because a rank was lost")),
      ring_round_s(m.AddHistogram("ringfill_ring_round_seconds", "Transfer time of one ring round",
                                  kRoundBuckets)),
      imbalance(m.AddHistogram("ringfill_step_imbalance_ratio",
                               "Work of a step's busiest rank over the mean of all ranks",
                               kImbalanceBuckets)),
      measured_over_predicted(
          m.AddHistogram("ringfill_step_measured_over_predicted_ratio",
                         "Seconds of a step that carried only prompt tokens over those that the "
                         "cost model predicted",
                         kPredictionBuckets)),
      queue_length(m.AddGauge("ringfill_queue_length", "Requests that wait for admission")),
      running_requests(m.AddGauge("ringfill_running_requests", "Requests being worked on")),
      epoch(m.AddGauge("ringfill_epoch", "How often the ring has formed")),
      ring_size(m.AddGauge("ringfill_ring_ranks", "Ranks in the ring; 0 while none is formed")) {
  for (int r = 0; r < rank_count; ++r) {
    const std::string rank = std::to_string(r);
    auto seconds = [&](const char* name, const char* help, const char* phase) {
      return &m.AddCounter(name, help, {{"rank", rank}, {"phase", phase}});
    };
    auto pages = [&](const char* state) {
      return &m.AddGauge("ringfill_kv_pages", "KV pages by state",
                         {{"rank", rank}, {"state", state}});
    };
    const char* busy = "ringfill_rank_busy_seconds_total";
    const char* busy_help = "Time a rank computed";
    const char* wait = "ringfill_rank_wait_seconds_total";
    const char* wait_help = "Time a rank waited for its peers";
    ranks.push_back(
        {seconds(busy, busy_help, "prefill"), seconds(wait, wait_help, "prefill"),
         seconds(busy, busy_help, "decode"), seconds(wait, wait_help, "decode"),
         &m.AddCounter("ringfill_ring_bytes_total", "Bytes a rank sent round the ring",
                       {{"rank", rank}}),
         &m.AddCounter("ringfill_ring_transfer_seconds_total",
                       "Time the communication lane moved bytes", {{"rank", rank}}),
         &m.AddCounter("ringfill_ring_hidden_seconds_total",
                       "Part of the transfer time in which the rank computed", {{"rank", rank}}),
         &m.AddCounter("ringfill_product_rows_total", "Rows through a layer's matrix products",
                       {{"rank", rank}}),
         &m.AddCounter("ringfill_attention_pairs_total",
                       "Pairs of a query token and a visible key, times layers", {{"rank", rank}}),
         &m.AddCounter("ringfill_rank_operations_total",
                       "Arithmetic operations of a rank's prompt tokens", {{"rank", rank}}),
         &m.AddGauge("ringfill_rank_measured_operations_per_second",
                     "Rate of matrix products, measured at start; of a rank that joined later "
                     "the mean; 0: not measured",
                     {{"rank", rank}}),
         pages("free"), pages("used")});
  }
  for (int mode = 0; mode < kTokenModes; ++mode) {
    for (int s = 0; s < kRingStrategies; ++s) {
      const bool sharded = mode != static_cast<int>(TokenMode::kReplicated);
      if (!sharded && s > 0) continue;
      const std::string strategy(sharded ? RingStrategyName(static_cast<RingStrategy>(s)) : "none");
      way_tokens[mode][s] =
          &m.AddCounter("ringfill_way_tokens_total", "Prompt tokens by the way they were computed",
                        {{"mode", std::string(TokenModeName(static_cast<TokenMode>(mode)))},
                         {"strategy", strategy}});
    }
  }
}

void EngineMetrics::AddWay(TokenMode mode, RingStrategy strategy, int64_t tokens) {
  const auto s = mode == TokenMode::kReplicated ? size_t{0} : static_cast<size_t>(strategy);
  way_tokens[static_cast<size_t>(mode)][s]->Increment(static_cast<double>(tokens));
}

void EngineMetrics::SetRates(const Figures& figures) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const bool known = r < figures.devices.size();
    ranks[r].measured_rate->Set(known ? figures.devices[r].product_flops_per_s : 0);
  }
}

void EngineMetrics::SetPages(size_t rank, int64_t used, int64_t total) {
  ranks[rank].kv_pages_used->Set(static_cast<double>(used));
  ranks[rank].kv_pages_free->Set(static_cast<double>(total - used));
}

void EngineMetrics::AddStep(const std::vector<RankStepResult>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    ranks[r].prefill_busy_s->Increment(results[r].prefill_busy_s);
    ranks[r].prefill_wait_s->Increment(results[r].prefill_wait_s);
    ranks[r].decode_busy_s->Increment(results[r].decode_busy_s);
    ranks[r].decode_wait_s->Increment(results[r].decode_wait_s);
    ranks[r].ring_bytes->Increment(static_cast<double>(results[r].ring_bytes));
    ranks[r].transfer_s->Increment(results[r].transfer_s);
    ranks[r].hidden_s->Increment(results[r].hidden_s());
    ranks[r].product_rows->Increment(static_cast<double>(results[r].work.product_rows));
    ranks[r].attention_pairs->Increment(static_cast<double>(results[r].work.attention_pairs));
    for (double s : results[r].round_seconds) ring_round_s.Observe(s);
  }
}

}  // namespace ringfill
