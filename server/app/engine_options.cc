#include "server/app/engine_options.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "server/text.h"

namespace ringfill {
namespace {

std::optional<DType> ToDType(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  return std::nullopt;  // auto
}

absl::StatusOr<CpuIsa> ToIsa(const std::string& name) {
  if (name == "auto") return DetectCpuIsa();
  const std::vector<CpuIsa> available = AvailableCpuIsas();
  for (const CpuIsa isa : available) {
    if (CpuIsaName(isa) == name) return isa;
  }
  std::string names;
  for (const CpuIsa isa : available) names += Concat(names.empty() ? "" : ", ", CpuIsaName(isa));
  return absl::InvalidArgumentError(
      Concat("compute.isa: this CPU does not have ", name, "; it has ", names));
}

Backend ToBackend(const std::string& name) {
  if (name == "cpu") return Backend::kCpu;
  if (name == "cuda") return Backend::kCuda;
  return Backend::kAuto;
}

std::optional<TokenMode> ToMode(const std::string& name) {
  if (name == "home") return TokenMode::kHome;
  if (name == "dealt") return TokenMode::kDealt;
  if (name == "replicated") return TokenMode::kReplicated;
  return std::nullopt;  // auto
}

// kOrdered is not for choice: strict numerics bring it.
std::optional<RingStrategy> ToStrategy(const std::string& name) {
  for (const RingStrategy strategy :
       {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
    if (RingStrategyName(strategy) == name) return strategy;
  }
  return std::nullopt;  // auto
}

}  // namespace

absl::StatusOr<EngineOptions> ToEngineOptions(const Config& config) {
  EngineOptions options;
  options.ranks = static_cast<int>(config.ranks_count);
  options.backend = ToBackend(config.ranks_backend);
  options.devices = ParseGpus(config.ranks_devices).value();
  options.kv_memory_fraction = config.kv_memory_fraction;
  options.threads = static_cast<int>(config.compute_threads);
  options.dtype = ToDType(config.compute_dtype);
  options.kv_dtype = ToDType(config.kv_dtype);
  RF_ASSIGN_OR_RETURN(options.isa, ToIsa(config.compute_isa));
  options.strict = config.compute_numerics == "strict";
  options.layout = ParseLayout(config.sharding_layout).value();
  options.rank_weights = ParseWeights(config.ranks_weights).value();
  options.weigh_by_speed = config.ranks_weights == "auto";
  options.mode = ToMode(config.ring_mode);
  options.strategy = ToStrategy(config.ring_strategy);
  // One rank has nothing to choose, and strict numerics leave nothing to.
  options.measure = options.ranks > 1 && !options.strict;
  options.gather_bytes = static_cast<size_t>(config.ring_gather_bytes);
  options.stripe_tokens = static_cast<int>(config.sharding_stripe_tokens);
  options.page_tokens = static_cast<int>(config.kv_page_tokens);
  options.kv_memory_bytes = config.kv_memory_bytes;
  options.decode_reserve_tokens = config.kv_decode_reserve;
  options.chunk_tokens = config.prefill_chunk_tokens;
  options.max_context_tokens = config.model_max_context_tokens;
  options.max_queued_requests = config.scheduler_max_queued_requests;
  options.max_running_requests = config.scheduler_max_running_requests;
  options.outbox_events = static_cast<size_t>(config.server_outbox_events);
  options.slow_client_timeout = FromSeconds(config.server_slow_client_timeout_s);
  options.min_round_timeout = std::chrono::milliseconds(config.ring_min_round_timeout_ms);
  options.expanded_weight_bytes = config.compute_expanded_weight_bytes;
  options.plan_log_path = config.debug_plan_log;
  options.plan_log_max_bytes = config.debug_plan_log_max_bytes;
  return options;
}

std::vector<std::string> ConfigWarnings(const Config& config, const ModelConfig& model) {
  std::vector<std::string> warnings;
  if (config.compute_dtype == "bf16") {
    if (DetectCpuIsa() < CpuIsa::kAvx512Bf16) {
      warnings.push_back(
          "compute.dtype is bf16 but this CPU has no bf16 arithmetic: values are stored in bf16 "
          "and multiplied in float32, slower than f32");
    } else if (const absl::StatusOr<CpuIsa> isa = ToIsa(config.compute_isa);
               isa.ok() && *isa < CpuIsa::kAvx512Bf16) {
      warnings.push_back(Concat("compute.dtype is bf16 but compute.isa is ", config.compute_isa,
                                ", which has no bf16 arithmetic: attention multiplies in float32, ",
                                "slower"));
    }
  }
  if (config.model_max_context_tokens > model.trained_context) {
    warnings.push_back(Concat("model.max_context_tokens is ", config.model_max_context_tokens,
                              "; the model was trained for ", model.trained_context,
                              " and answers get worse beyond"));
  }
  for (const std::string* const address : {&config.server_listen, &config.metrics_listen}) {
    if (!address->empty() && !IsLoopback(*address)) {
      warnings.push_back(Concat(*address, " can be reached from other machines and there is ",
                                "no authentication"));
    }
  }
  return warnings;
}

}  // namespace ringfill
