#include "engine/sim/simulate.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/layout/placement.h"
#include "engine/schedule/documents.h"
#include "engine/sim/virtual_device.h"
#include "engine/sim/virtual_group.h"
#include "engine/worker/run_step.h"

namespace ringfill {
namespace {

// One rank's side of the simulation; its thread's alone while steps run.
struct VirtualRank {
  RankTime time;
  std::unique_ptr<VirtualDevice> device;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<Rank> rank;
  absl::Status status;
  SimRank result;
};

RankOptions OptionsOf(const SimSpec& spec) {
  const ModelShape& shape = spec.shape;
  RankOptions options;
  options.model.layers = shape.layers;
  options.model.width = static_cast<int>(shape.width);
  options.model.ffn_width = static_cast<int>(shape.ffn_width);
  options.model.heads = static_cast<int>(shape.heads);
  options.model.kv_heads = static_cast<int>(shape.kv_heads);
  options.model.head_dim = static_cast<int>(shape.head_dim);
  options.model.vocab = shape.vocab;
  options.geometry.layers = shape.layers;
  options.geometry.kv_heads = static_cast<int>(shape.kv_heads);
  options.geometry.page_tokens = static_cast<int>(shape.page_tokens);
  options.geometry.block_bytes =
      static_cast<size_t>(shape.page_tokens * shape.head_dim * shape.kv_element_bytes);
  options.gather_bytes = static_cast<size_t>(spec.gather_bytes);
  return options;
}

int64_t PagesFor(const SimSpec& spec, const Placement& placement, int rank, int64_t tokens) {
  return (placement.TokensBefore(rank, tokens) + spec.shape.page_tokens - 1) /
         spec.shape.page_tokens;
}

StepPlan PlanOf(const SimSpec& spec, const Placement& placement, size_t step, int64_t begin) {
  StepPlan plan;
  plan.step = step + 1;
  plan.ranks = placement.ranks();
  plan.placements = {spec.placement};
  PrefillChunk chunk;
  chunk.sequence = 1;
  chunk.spans = {{begin, begin + spec.chunk_tokens[step]}};
  chunk.tokens.assign(static_cast<size_t>(spec.chunk_tokens[step]), 0);
  chunk.document_starts = StartsOf(spec.document_starts, chunk.spans);
  chunk.mode = spec.way.mode;
  chunk.strategy = spec.way.strategy;
  chunk.wants_logits = spec.wants_logits && step + 1 == spec.chunk_tokens.size();
  for (int r = 0; r < placement.ranks(); ++r) {
    std::vector<PageId>& pages = chunk.pages.emplace_back();
    pages.resize(static_cast<size_t>(PagesFor(spec, placement, r, chunk.end())));
    std::iota(pages.begin(), pages.end(), PageId{0});
  }
  plan.chunks.push_back(std::move(chunk));
  return plan;
}

void RunRank(VirtualRank& rank, const std::vector<StepPlan>& plans) {
  for (const StepPlan& plan : plans) {
    RankStepResult step = RunStep(*rank.rank, plan, {});
    rank.result.busy_s += step.prefill_busy_s + step.decode_busy_s;
    rank.result.work.product_rows += step.work.product_rows;
    rank.result.work.attention_pairs += step.work.attention_pairs;
    rank.result.trace.insert(rank.result.trace.end(), step.trace.begin(), step.trace.end());
    rank.status = step.status;
    if (!step.status.ok()) break;
  }
  const VirtualTraffic traffic = TrafficOf(*rank.comm);
  // The step's own wait has what the host really waited in it.
  rank.result.wait_s =
      std::max(rank.device->stream().now_s(), rank.time.host_s) - rank.result.busy_s;
  rank.result.lane_s = traffic.lane_s;
  rank.result.sent_bytes = traffic.sent_bytes;
}

}  // namespace

PrefillChunk FirstChunk(const SimSpec& spec) {
  const Placement placement(spec.figures.ranks(), spec.placement.stripe_tokens,
                            spec.placement.slot_map);
  return PlanOf(spec, placement, 0, spec.cached_tokens).chunks.front();
}

absl::StatusOr<SimResult> Simulate(const SimSpec& spec) {
  const int n = spec.figures.ranks();
  const Placement placement(n, spec.placement.stripe_tokens, spec.placement.slot_map);
  std::vector<StepPlan> plans;
  int64_t end = spec.cached_tokens;
  for (size_t step = 0; step < spec.chunk_tokens.size(); ++step) {
    plans.push_back(PlanOf(spec, placement, step, end));
    end += spec.chunk_tokens[step];
  }
  std::vector<VirtualRank> ranks(static_cast<size_t>(n));
  std::vector<RankTime*> times;
  for (VirtualRank& rank : ranks) times.push_back(&rank.time);
  auto group = MakeVirtualGroup(spec.figures, times);
  const RankOptions options = OptionsOf(spec);
  for (int r = 0; r < n; ++r) {
    VirtualRank& rank = ranks[static_cast<size_t>(r)];
    rank.device =
        std::make_unique<VirtualDevice>(spec.shape, spec.figures.devices[static_cast<size_t>(r)],
                                        PagesFor(spec, placement, r, end), rank.time);
    rank.comm = std::move(group[static_cast<size_t>(r)]);
    rank.device->trace().Enable(spec.trace);
    rank.comm->TraceTo(&rank.device->trace());
    rank.rank = std::make_unique<Rank>(options, *rank.device, rank.comm.get());
  }
  std::vector<std::thread> threads;
  for (size_t r = 1; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { RunRank(ranks[r], plans); });
  }
  RunRank(ranks[0], plans);
  for (std::thread& thread : threads) thread.join();

  SimResult result;
  double lane_s = 0;
  double wait_s = 0;
  for (VirtualRank& rank : ranks) {
    RF_RETURN_IF_ERROR(rank.status);
    result.seconds = std::max({result.seconds, rank.device->stream().now_s(), rank.time.host_s});
    lane_s += rank.result.lane_s;
    wait_s += std::min(rank.result.wait_s, rank.result.lane_s);
    result.ranks.push_back(std::move(rank.result));
  }
  if (lane_s > 0) result.hidden_share = 1 - wait_s / lane_s;
  return result;
}

}  // namespace ringfill
