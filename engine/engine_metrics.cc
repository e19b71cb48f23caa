#include "engine/engine_metrics.h"

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
      ring_round_s(m.AddHistogram("ringfill_ring_round_seconds", "Transfer time of one ring round",
                                  kRoundBuckets)),
      queue_length(m.AddGauge("ringfill_queue_length", "Requests that wait for admission")),
      running_requests(m.AddGauge("ringfill_running_requests", "Requests being worked on")) {
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
    ranks.push_back({seconds(busy, busy_help, "prefill"), seconds(wait, wait_help, "prefill"),
                     seconds(busy, busy_help, "decode"), seconds(wait, wait_help, "decode"),
                     &m.AddCounter("ringfill_ring_bytes_total", "Bytes a rank sent round the ring",
                                   {{"rank", rank}}),
                     pages("free"), pages("used")});
  }
}

void EngineMetrics::AddStep(const std::vector<RankStepResult>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    ranks[r].prefill_busy_s->Increment(results[r].prefill_busy_s);
    ranks[r].prefill_wait_s->Increment(results[r].prefill_wait_s);
    ranks[r].decode_busy_s->Increment(results[r].decode_busy_s);
    ranks[r].decode_wait_s->Increment(results[r].decode_wait_s);
    ranks[r].ring_bytes->Increment(static_cast<double>(results[r].ring_bytes));
    for (double s : results[r].round_seconds) ring_round_s.Observe(s);
  }
}

}  // namespace ringfill
