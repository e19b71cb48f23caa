// What one rank owns and shares: its KV pages, its end of the communicator, its threads and their
// scratch. The prefill and decode loops work on it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "engine/comm/communicator.h"
#include "engine/compute/attention/attention.h"
#include "engine/layer/layer.h"
#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/thread_team.h"
#include "kvcache/page_pool.h"

namespace ringfill {

// Constant for the life of the engine; shared by all ranks.
struct ForwardContext {
  const Model* model = nullptr;
  ExpandedWeights* weights = nullptr;
  const LayerForward* forward = nullptr;
  const AttentionKernel* attention = nullptr;
  KvBlockShape kv_shape{};
  KvGeometry geometry;
  CpuIsa isa = CpuIsa::kBaseline;
  const Clock* clock = nullptr;
  Duration min_round_timeout{};

  const ModelConfig& config() const { return model->config(); }
  int group() const { return config().heads / config().kv_heads; }
};

// The leader's side of a running step, besides the plan. Called from rank threads.
struct StepControl {
  // Should work on this chunk stop (cancelled, past its deadline)? Asked before each layer.
  std::function<bool(int chunk)> should_stop;
  // Rank 0 has finished `layers_done` layers of the step's chunks.
  std::function<void(int layers_done)> on_layer;
};

struct ScoredToken {
  int chunk = 0;
  int64_t position = 0;  // of the token that predicts
  float logprob = 0;     // natural, of the token after it
};

// What a rank reports to the leader after a step.
struct RankStepResult {
  absl::Status status;
  double prefill_busy_s = 0, prefill_wait_s = 0;
  double decode_busy_s = 0, decode_wait_s = 0;
  int64_t ring_bytes = 0;             // sent
  std::vector<double> round_seconds;  // transfer time of each ring round
  uint64_t stopped_mask = 0;          // chunks that all ranks stopped working on
  // Logits of this rank's vocabulary slice: [logit rows][vocab_end - vocab_begin]. Rows: chunks
  // that want logits and were not stopped, then decodes, in plan order.
  int64_t vocab_begin = 0, vocab_end = 0;
  std::vector<float> logits;
  std::vector<ScoredToken> scores;
};

// How long a rank waits for a peer in this step: what the step's work of one layer, or of the
// output head, takes a rank that has all of it, at a rate so low that only a stuck rank is slower;
// at least context.min_round_timeout.
Duration PeerTimeout(const ForwardContext& context, const StepPlan& plan);

// Scratch of one compute thread.
struct ThreadScratch {
  ThreadScratch(const ModelConfig& config, DType dtype) : tile(config, dtype) {}
  MatrixProducts products;
  TileScratch tile;
  AlignedBuffer attention;
};

// Used by the rank's own thread; its team shares loops over it.
class Rank {
 public:
  Rank(const ForwardContext& context, const Placement& placement, int64_t pages, int threads,
       int spin_rounds);

  int index() const { return comm->rank(); }
  int ranks() const { return comm->size(); }

  const ForwardContext& context;
  const Placement& placement;
  Communicator* comm = nullptr;  // set while an epoch lasts
  Duration peer_timeout{};       // of every wait for a peer in the current step
  PagePool pool;
  ThreadTeam team;
  std::vector<std::unique_ptr<ThreadScratch>> scratch;  // [team.size()]

  // Makes `buffer` at least `bytes` large; its contents are lost when it grows.
  static void Reserve(AlignedBuffer& buffer, size_t bytes);

  // Prefill activations, grown to the largest chunk seen; see prefill_pass.cc for shapes.
  AlignedBuffer x, angles, q, state_max, state_sum, state_acc;
  AlignedBuffer ring[2];  // the shard being attended to and the one in flight
};

}  // namespace ringfill
