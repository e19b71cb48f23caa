// N ranks as threads that run step plans made by hand, on CPU devices or others: the passes without
// a scheduler.
//
//   RingHarness ring(model, {.ranks = 3});
//   auto& prompt = ring.AddSequence(tokens, SnakeSpec(3, 32));
//   StepPlan plan = ring.NewPlan();
//   ring.AddChunk(plan, prompt, {{0, 100}}, TokenMode::kDealt, RingStrategy::kPassQ);
//   auto results = ring.Run(plan);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "engine/compute/cpu/cpu_model.h"
#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/rank.h"
#include "engine/worker/rank_backend.h"
#include "engine/worker/step_result.h"
#include "engine/worker/workers.h"
#include "tests/testing/tcp_ring.h"

namespace ringfill {

// The layouts that are compared.
PlacementSpec SnakeSpec(int ranks, int stripe_tokens);
PlacementSpec ContiguousSpec(int ranks, int64_t tokens, int page_tokens);
PlacementSpec ZigzagSpec(int ranks, int64_t tokens, int page_tokens);
PlacementSpec TokenStripesSpec(int ranks);

struct RingHarnessOptions {
  int ranks = 1;
  int64_t pages_per_rank = 256;
  int threads = 1;
  size_t gather_bytes = size_t{1} << 30;
  Duration min_round_timeout = std::chrono::seconds(60);
  bool tcp = false;        // the ranks talk over loopback; else the local transport
  uint64_t late_seed = 0;  // 0: operations run at once; else late, on streams of that seed
  CpuModelOptions model{.page_tokens = 16};
  // Other devices and transports than the above describe; the page size stays.
  std::function<std::unique_ptr<RankBackend>(std::shared_ptr<const Model>,
                                             const RingHarnessOptions&)>
      make_backend = {};
};

class RingHarness {
 public:
  struct Sequence {
    SequenceId id;
    std::vector<TokenId> tokens;
    PlacementSpec placement;
    BlockTable pages;  // for all tokens, in no order of the pool
    std::vector<int64_t> document_starts = {};
  };

  RingHarness(std::shared_ptr<const Model> model, const RingHarnessOptions& options);

  int ranks() const { return options_.ranks; }
  Sequence& AddSequence(std::vector<TokenId> tokens, const PlacementSpec& placement);

  // Its pages are free again, and overwritten before the next step.
  void Release(Sequence& sequence);

  // The plan frees the pages that hold positions [span.begin, span.end): what they held is lost,
  // and holes to fill. Such a plan is for RunEach: pages that are freed and used are not valid.
  void LosePages(StepPlan& plan, const Sequence& sequence, const std::vector<Span>& spans) const;

  // The next step; nothing to do yet.
  StepPlan NewPlan();
  // Returns the chunk; wants_logits is set.
  PrefillChunk& AddChunk(StepPlan& plan, const Sequence& sequence, std::vector<Span> spans,
                         TokenMode mode, RingStrategy strategy) const;
  void AddDecode(StepPlan& plan, const Sequence& sequence, int64_t position) const;

  // Ends the process when the plan is not valid or the ranks hang.
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control = {});
  // The same with a plan of its own for each rank, which nobody checks.
  std::vector<RankStepResult> RunEach(const std::vector<StepPlan>& plans,
                                      const StepControl& control = {});
  // Every rank's status must be OK; the rows of logits, whole.
  std::vector<std::vector<float>> Logits(const std::vector<RankStepResult>& results) const;
  // After a failed step.
  void Reform();
  Rank& rank(int r) { return *ranks_[static_cast<size_t>(r)].rank; }

 private:
  struct OneRank {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<Rank> rank;
  };

  int PlacementIn(StepPlan& plan, const PlacementSpec& spec) const;

  std::unique_ptr<RankBackend> CpuBackend(std::shared_ptr<const Model> model);

  const RingHarnessOptions options_;
  std::unique_ptr<TcpRing> tcp_;  // null: local
  std::unique_ptr<RankBackend> backend_;
  std::vector<OneRank> ranks_;
  std::deque<Sequence> sequences_;
  std::vector<std::vector<PageId>> free_;  // [ranks] shuffled
  BlockTable freed_;                       // by Release
  uint64_t step_ = 0;
  uint64_t epoch_ = 1;
};

std::vector<TokenId> RandomTokens(size_t n, int64_t vocab, uint64_t seed);

}  // namespace ringfill
