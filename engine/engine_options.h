// What an engine is made with, and what it settled on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/layout/layouts.h"
#include "engine/model/model.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/workers.h"

namespace ringfill {

inline constexpr int kMaxRanks = 64;
#ifdef NDEBUG
inline constexpr bool kPoisonByDefault = false;
#else
inline constexpr bool kPoisonByDefault = true;
#endif

struct EngineInfo;

// What ranks compute on. kAuto: GPUs where they can be used by threads of this process, else the
// CPU.
enum class Backend { kCpu, kCuda, kAuto };

// Makes the ranks, when they are not threads of this process.
using WorkersFactory = std::function<absl::StatusOr<std::unique_ptr<Workers>>(
    const WorkersSpec& spec, const EngineInfo& info)>;

struct EngineOptions {
  int ranks = 1;  // 1 to kMaxRanks
  Backend backend = Backend::kCpu;
  std::vector<int> devices;         // [ranks] GPUs; empty: the first ones
  double kv_memory_fraction = 0.9;  // of what weights and scratch leave of a GPU
  int threads = 0;             // compute threads over all ranks; 0: one a core; at least one a rank
  std::optional<DType> dtype;  // unset: bf16 where the CPU has it, else f32
  std::optional<DType> kv_dtype;  // unset: follows dtype
  CpuIsa isa = DetectCpuIsa();    // tests force a lower one
  // Equal bits whatever the number of ranks, the neighbours, the chunks and the cached prefix.
  bool strict = false;
  int stripe_tokens = 64;  // of the snake layout, a multiple of page_tokens
  int page_tokens = 64;    // a multiple of 16
  Layout layout = Layout::kSnake;
  std::vector<double> rank_weights;  // [ranks] share of each, any unit; empty: even
  // Forces how prompts are computed; unset: chosen for each chunk.
  std::optional<TokenMode> mode;
  std::optional<RingStrategy> strategy;
  // Choose by a cost model fed with figures measured at start; otherwise by a rule.
  bool measure = false;
  // Give faster ranks more slots, by the same figures; rank_weights is not used then.
  bool weigh_by_speed = false;
  size_t gather_bytes = size_t{256} << 20;  // most that gather-KV may hold of one layer on a rank

  int64_t kv_memory_bytes = 0;          // over all ranks; 0: room for four full contexts, at most a
                                        // quarter of the memory (base/machine.h)
  int64_t decode_reserve_tokens = 256;  // reserved beyond the prompt at admission
  int64_t chunk_tokens = 2048;          // prompt tokens a step, over all ranks
  int64_t max_context_tokens = 0;       // 0: the model's trained context
  int64_t max_queued_requests = 64;     // more are refused with RESOURCE_EXHAUSTED
  int64_t max_running_requests = 64;
  size_t outbox_events = 256;
  Duration slow_client_timeout = std::chrono::seconds(60);  // full outbox longer: cancelled
  Duration min_round_timeout = std::chrono::seconds(30);    // floor of every wait for a peer
  int64_t expanded_weight_bytes = 0;  // budget for expanded layers; at least two layers are kept
  bool poison_freed_pages = kPoisonByDefault;  // overwrite freed KV pages with NaN

  std::string plan_log_path;  // records every step there, for replay; empty: off
  int64_t plan_log_max_bytes = int64_t{1} << 30;

  WorkersFactory workers;  // empty: ranks are threads of this process
  // They are started by others, where they check the memory of their own.
  bool workers_elsewhere = false;
  StepFault fault;  // for tests of failure, with ranks as threads
};

// What the engine settled on, for logs and GetStatus.
struct EngineInfo {
  int ranks = 0;
  int threads_per_rank = 0;
  bool threads_settled_here = false;  // by this machine's cores, not by EngineOptions::threads
  DType dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  std::string backend;  // "cpu", "cuda"
  std::string gpus;     // described, when there are some
  std::string isa;
  std::string attention_kernel;
  std::string transport;  // of the ranks: "threads", "processes"
  bool strict = false;
  Layout layout = Layout::kSnake;
  int stripe_tokens = 0;
  int page_tokens = 0;
  int64_t chunk_tokens = 0;
  int64_t max_context_tokens = 0;
  int64_t kv_pages = 0;   // over all ranks
  int64_t kv_bytes = 0;   // over all ranks
  int64_t kv_tokens = 0;  // capacity over all ranks
};

// INVALID_ARGUMENT naming the option that is out of its range or does not fit the others.
absl::Status CheckOptions(const EngineOptions& options);

// INVALID_ARGUMENT naming the option that GPUs do not do.
absl::Status CheckGpuOptions(const EngineOptions& options);

// Fills in what was left to the engine. INVALID_ARGUMENT naming the option that does not fit.
// `gpu`: null for ranks on the CPU.
absl::Status SettleOptions(const ModelConfig& model, EngineOptions& options, EngineInfo& info,
                           const GpuPages* gpu = nullptr);
// The KV pool on GPUs, where it was not known then. REQUIRES: `options` and `info` are settled.
void SettleGpuPool(const ModelConfig& model, const EngineOptions& options, const GpuPages& gpu,
                   EngineInfo& info);

}  // namespace ringfill
