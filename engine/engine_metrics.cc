#include "engine/engine_metrics.h"

#include <algorithm>
#include <string>

namespace ringfill {
namespace {

// Few buckets, fitted to long prompts: all series of eight ranks together stay below 500.
const std::vector<double> kTtftBuckets = {0.1, 0.5, 2.5, 5,   10,   20,   40,
                                          60,  120, 300, 600, 1200, 2400, 3600};
const std::vector<double> kInterTokenBuckets = {0.005, 0.01, 0.02, 0.04, 0.08,
                                                0.15,  0.3,  0.6,  2.5,  10};
// Phases of a request: from an idle daemon to a prompt of millions of tokens on CPUs.
const std::vector<double> kPhaseBuckets = {0.1, 1, 5, 15, 60, 300, 600, 1800, 3600};
const std::vector<double> kPromptBuckets = {1024,   4096,   16384,   65536,  131072,
                                            262144, 524288, 1048576, 4194304};
const std::vector<double> kGeneratedBuckets = {1, 16, 64, 256, 1024, 4096, 16384};
const std::vector<double> kStepBuckets = {0.01, 0.03, 0.1, 0.3, 1, 10, 60};
const std::vector<double> kStepTokenBuckets = {64, 256, 512, 1024, 2048, 4096, 8192, 32768};
const std::vector<double> kStepDecodeBuckets = {1, 2, 4, 8, 16, 32, 64};
const std::vector<double> kRoundBuckets = {0.00003, 0.0001, 0.0003, 0.001, 0.003,
                                           0.01,    0.03,   0.1,    1,     10};
const std::vector<double> kPredictionBuckets = {0.25, 0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2, 4};
const std::vector<double> kImbalanceBuckets = {1.01, 1.03, 1.05, 1.1, 1.25, 1.5, 2, 4};

}  // namespace

EngineMetrics::EngineMetrics(Metrics& m, int rank_count)
    : ttft_s(m.AddHistogram("ringfill_time_to_first_token_seconds",
                            "Arrival of a request to its first token", kTtftBuckets)),
      inter_token_s(m.AddHistogram("ringfill_inter_token_seconds",
                                   "Time between two tokens of a request", kInterTokenBuckets)),
      queue_time_s(m.AddHistogram("ringfill_request_queue_time_seconds",
                                  "Arrival of a request to its first step", kPhaseBuckets)),
      prefill_time_s(m.AddHistogram("ringfill_request_prefill_time_seconds",
                                    "First step of a request to the end of its prompt",
                                    kPhaseBuckets)),
      decode_time_s(m.AddHistogram("ringfill_request_decode_time_seconds",
                                   "First token of a request to its last", kPhaseBuckets)),
      prompt_tokens(m.AddHistogram("ringfill_request_prompt_tokens",
                                   "Prompt tokens of a request when it was admitted",
                                   kPromptBuckets)),
      generation_tokens(m.AddHistogram("ringfill_request_generation_tokens",
                                       "Tokens that a finished request generated",
                                       kGeneratedBuckets)),
      step_prefill_tokens(m.AddHistogram("ringfill_step_prefill_tokens",
                                         "Prompt tokens of a step that carried some",
                                         kStepTokenBuckets)),
      step_decode_tokens(m.AddHistogram("ringfill_step_decode_tokens",
                                        "Decoded tokens of a step that carried some",
                                        kStepDecodeBuckets)),
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
      all_gather_s(m.AddHistogram("ringfill_all_gather_seconds",
                                  "Transfer time of one all-gather of replicated tokens",
                                  {kGatherBounds.begin(), kGatherBounds.end()})),
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
      oldest_queued_s(m.AddGauge("ringfill_oldest_queued_seconds",
                                 "How long the oldest request that was never admitted has waited")),
      since_progress_s(m.AddGauge("ringfill_seconds_since_progress",
                                  "Since a step, or a layer of one, ended; 0 without work")),
      since_step_s(m.AddGauge("ringfill_seconds_since_step", "Since a step ended; 0 without work")),
      kv_usage(m.AddGauge("ringfill_kv_usage_ratio", "KV pages in use of the fullest rank")),
      kv_capacity_tokens(m.AddGauge("ringfill_kv_capacity_tokens",
                                    "Tokens whose KV all configured ranks can hold")),
      kv_capacity_bytes(
          m.AddGauge("ringfill_kv_capacity_bytes", "Size of the KV pages of all configured ranks")),
      kv_page_tokens(m.AddGauge("ringfill_kv_page_tokens", "Tokens of a KV page")),
      configured_ranks(m.AddGauge("ringfill_configured_ranks", "Ranks that the ring should have")),
      epoch(m.AddGauge("ringfill_epoch", "How often the ring has formed")),
      ring_size(m.AddGauge("ringfill_ring_ranks", "Ranks in the ring; 0 while none is formed")) {
  for (size_t i = 0; i < kStepKinds; ++i) {
    constexpr const char* kKinds[kStepKinds] = {"prefill", "decode", "mixed"};
    step_s[i] = &m.AddHistogram("ringfill_step_seconds", "Wall time of a step by what it carried",
                                kStepBuckets, {{"kind", kKinds[i]}});
  }
  for (size_t i = 0; i < kNonFiniteStages; ++i) {
    constexpr const char* kStages[kNonFiniteStages] = {"attention", "products", "output"};
    nonfinite_requests[i] = &m.AddCounter(
        "ringfill_nonfinite_requests_total",
        "Requests that ended because a value was not finite, by where it showed first",
        {{"stage", kStages[i]}});
  }
  const auto success = [&](const char* reason) {
    return &m.AddCounter("ringfill_request_success_total", "Requests that ended as they should",
                         {{"finished_reason", reason}});
  };
  stopped_requests = success("stop");
  length_requests = success("length");
  prefill_requests = success("prefill");
  for (int r = 0; r < rank_count; ++r) ranks.push_back(AddRank(m, std::to_string(r)));
  AddWays(m);
}

EngineMetrics::PerRank EngineMetrics::AddRank(Metrics& m, const std::string& rank) {
  const auto seconds = [&](const char* name, const char* help, const char* phase) {
    return &m.AddCounter(name, help, {{"rank", rank}, {"phase", phase}});
  };
  const auto counter = [&](const char* name, const char* help) {
    return &m.AddCounter(name, help, {{"rank", rank}});
  };
  const auto pages = [&](const char* state) {
    return &m.AddGauge("ringfill_kv_pages", "KV pages by state",
                       {{"rank", rank}, {"state", state}});
  };
  const auto states = [&](const char* outcome) {
    return &m.AddCounter("ringfill_softmax_states_total",
                         "Partial softmax states that were merged, and that saw no key",
                         {{"rank", rank}, {"outcome", outcome}});
  };
  const char* busy = "ringfill_rank_busy_seconds_total";
  const char* busy_help = "Time a rank computed";
  const char* wait = "ringfill_rank_wait_seconds_total";
  const char* wait_help = "Time a rank waited for its peers";
  PerRank out;
  out.prefill_busy_s = seconds(busy, busy_help, "prefill");
  out.prefill_wait_s = seconds(wait, wait_help, "prefill");
  out.decode_busy_s = seconds(busy, busy_help, "decode");
  out.decode_wait_s = seconds(wait, wait_help, "decode");
  out.ring_bytes = counter("ringfill_ring_bytes_total", "Bytes a rank sent round the ring");
  out.transfer_s =
      counter("ringfill_ring_transfer_seconds_total", "Time the communication lane moved bytes");
  out.hidden_s = counter("ringfill_ring_hidden_seconds_total",
                         "Part of the transfer time in which the rank computed");
  for (size_t k = 0; k < kCommKinds; ++k) {
    out.rounds[k] = &m.AddCounter(
        "ringfill_communication_rounds_total", "Exchanges and all-gathers of a rank",
        {{"rank", rank}, {"kind", std::string(CommKindName(static_cast<CommKind>(k)))}});
  }
  out.gather_bytes = counter("ringfill_all_gather_bytes_total", "Bytes a rank sent in all-gathers");
  out.merged_states = states("merged");
  out.empty_states = states("empty");
  for (size_t i = 0; i < kMemoryPools; ++i) {
    out.memory[i] = &m.AddGauge(
        "ringfill_memory_bytes", "Memory of a rank's device by what it is for, after its last step",
        {{"rank", rank}, {"pool", std::string(MemoryPoolName(static_cast<MemoryPool>(i)))}});
  }
  out.product_rows =
      counter("ringfill_product_rows_total", "Rows through a layer's matrix products");
  out.attention_pairs = counter("ringfill_attention_pairs_total",
                                "Pairs of a query token and a visible key, times layers");
  out.operations =
      counter("ringfill_rank_operations_total", "Arithmetic operations of a rank's prompt tokens");
  out.measured_rate = &m.AddGauge("ringfill_rank_measured_operations_per_second",
                                  "Rate of matrix products, measured at start; of a rank that "
                                  "joined later the mean; 0: not measured",
                                  {{"rank", rank}});
  out.kv_pages_free = pages("free");
  out.kv_pages_used = pages("used");
  return out;
}

void EngineMetrics::AddWays(Metrics& m) {
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

void EngineMetrics::AddPlan(const StepPlan& plan, double seconds) {
  steps.Increment();
  const StepKind kind = plan.decodes.empty()  ? StepKind::kPrefill
                        : plan.chunks.empty() ? StepKind::kDecode
                                              : StepKind::kMixed;
  step_s[static_cast<size_t>(kind)]->Observe(seconds);
  size_t tokens = 0;
  for (const PrefillChunk& chunk : plan.chunks) tokens += chunk.tokens.size();
  if (tokens > 0) step_prefill_tokens.Observe(static_cast<double>(tokens));
  if (!plan.decodes.empty()) step_decode_tokens.Observe(static_cast<double>(plan.decodes.size()));
}

void EngineMetrics::AddAdmitted(double queue_s, size_t tokens) {
  queue_time_s.Observe(queue_s);
  prompt_tokens.Observe(static_cast<double>(tokens));
}

void EngineMetrics::AddFinished(bool prefill_only, FinishReason reason, int64_t generated,
                                double decode_s) {
  generation_tokens.Observe(static_cast<double>(generated));
  if (prefill_only) return prefill_requests->Increment();
  decode_time_s.Observe(decode_s);
  (reason == FinishReason::kStop ? stopped_requests : length_requests)->Increment();
}

void EngineMetrics::SetPool(const PoolFigures& pool) {
  configured_ranks.Set(pool.ranks);
  kv_page_tokens.Set(pool.page_tokens);
  kv_capacity_tokens.Set(static_cast<double>(pool.tokens));
  kv_capacity_bytes.Set(static_cast<double>(pool.bytes));
}

void EngineMetrics::SetPages(size_t rank, int64_t used, int64_t total) {
  ranks[rank].kv_pages_used->Set(static_cast<double>(used));
  ranks[rank].kv_pages_free->Set(static_cast<double>(total - used));
}

void EngineMetrics::SetGone(size_t rank) {
  SetPages(rank, 0, 0);
  for (Gauge* memory : ranks[rank].memory) memory->Set(0);
}

void EngineMetrics::AddCommunication(PerRank& rank, const RankStepResult& result) {
  const CommCounts& comm = result.comm;
  for (size_t k = 0; k < kCommKinds; ++k) {
    rank.rounds[k]->Increment(static_cast<double>(comm.rounds[k]));
  }
  rank.gather_bytes->Increment(static_cast<double>(comm.gather_bytes));
  all_gather_s.ObserveMultiple({comm.gather_times.begin(), comm.gather_times.end()}, comm.gather_s);
  rank.merged_states->Increment(static_cast<double>(result.work.merged_states));
  rank.empty_states->Increment(static_cast<double>(result.work.empty_states));
  for (size_t i = 0; i < kMemoryPools; ++i) {
    rank.memory[i]->Set(static_cast<double>(result.memory[i]));
  }
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
    AddCommunication(ranks[r], results[r]);
  }
}

}  // namespace ringfill
