// How evenly whole plans share work over the ranks, by exact counts.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/layout/slot_map.h"
#include "engine/prefill/row_layout.h"
#include "engine/schedule/rule_chooser.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

constexpr int kRanks = 4;
constexpr int kPage = 64;

// Work of each rank over the steps that prefill what sequence `id` misses: (query, key) pairs, and
// tokens. Replicated tokens are everyone's.
class Meter {
 public:
  void Add(const StepPlan& plan) {
    std::vector<Placement> placements;
    for (const PlacementSpec& spec : plan.placements) placements.emplace_back(plan.ranks, spec);
    std::vector<const Placement*> pointers;
    for (const Placement& placement : placements) pointers.push_back(&placement);
    const StepLayout layout(plan, pointers, {.page_tokens = kPage});
    for (int r = 0; r < plan.ranks; ++r) {
      for (const int64_t position : layout.rows(r).position) {
        pairs_[static_cast<size_t>(r)] += static_cast<double>(position + 1);
        ++tokens_[static_cast<size_t>(r)];
      }
    }
    for (const PrefillChunk& chunk : plan.chunks) {
      if (chunk.mode != TokenMode::kReplicated) continue;
      for (size_t r = 0; r < kRanks; ++r) {
        tokens_[r] += static_cast<double>(chunk.tokens.size()) / kRanks;
        pairs_[r] +=
            static_cast<double>(chunk.tokens.size() * static_cast<size_t>(chunk.end())) / kRanks;
      }
    }
  }
  double pairs() const { return MaxOverMean(pairs_); }
  double tokens() const { return MaxOverMean(tokens_); }

 private:
  static double MaxOverMean(const std::vector<double>& values) {
    return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) /
           std::accumulate(values.begin(), values.end(), 0.0);
  }
  std::vector<double> pairs_ = std::vector<double>(kRanks);
  std::vector<double> tokens_ = std::vector<double>(kRanks);
};

SchedulerOptions Options() {
  SchedulerOptions options;
  options.pages_per_rank = 1000;
  return options;
}

SequenceSpec Spec(SequenceId id, int64_t tokens) {
  SequenceSpec spec;
  spec.id = id;
  spec.prompt.assign(static_cast<size_t>(tokens), 1);
  spec.max_new_tokens = 1;
  return spec;
}

void PrefillAll(Scheduler& scheduler, Meter* meter) {
  for (;;) {
    const StepPlan plan = scheduler.Plan();
    if (plan.empty()) return;
    if (meter != nullptr) meter->Add(plan);
    scheduler.Commit(plan);
  }
}

TEST(BalanceTest, ALongPromptOverFourRanks) {
  const RuleChooser chooser;
  Scheduler scheduler(HealthySlotMap(kRanks), kRanks, Options(), chooser);
  scheduler.Enqueue(Spec(1, 32768));
  scheduler.Admit();
  Meter meter;
  PrefillAll(scheduler, &meter);
  EXPECT_LE(meter.pairs(), 1.03);
  EXPECT_LE(meter.tokens(), 1.001);
}

TEST(BalanceTest, NewTokensOverACachedPrefixOfEveryResidue) {
  const RuleChooser chooser;
  for (const int64_t tokens : {64, 256, 1024, 2242, 4096}) {
    for (int64_t residue = 0; residue < kPage; ++residue) {
      const int64_t cached = 8192 + residue;
      Scheduler scheduler(HealthySlotMap(kRanks), kRanks, Options(), chooser);
      scheduler.Enqueue(Spec(1, cached));
      scheduler.Admit();
      PrefillAll(scheduler, nullptr);
      SequenceSpec turn = Spec(2, cached + tokens);
      turn.valid = {{0, cached}};
      turn.pages = scheduler.SharePages(1);
      scheduler.Remove(1);
      scheduler.Enqueue(std::move(turn));
      scheduler.Admit();
      EXPECT_EQ(scheduler.PromptMissing(2), tokens);
      Meter meter;
      PrefillAll(scheduler, &meter);
      EXPECT_LE(meter.pairs(), 1.10) << tokens << " over " << cached;
      EXPECT_LE(meter.tokens(), 1.10) << tokens << " over " << cached;
    }
  }
}

// A packed step of many short prompts.
TEST(BalanceTest, ManyShortPromptsTogether) {
  const RuleChooser chooser;
  Scheduler scheduler(HealthySlotMap(kRanks), kRanks, Options(), chooser);
  for (SequenceId id = 1; id <= 40; ++id) {
    scheduler.Enqueue(Spec(id, 1 + static_cast<int64_t>(id * 97 % 300)));
  }
  scheduler.Admit();
  Meter meter;
  PrefillAll(scheduler, &meter);
  EXPECT_LE(meter.tokens(), 1.05);
  EXPECT_LE(meter.pairs(), 1.10);
}

}  // namespace
}  // namespace ringfill
