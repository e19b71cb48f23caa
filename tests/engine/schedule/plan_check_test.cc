#include "engine/schedule/plan_check.h"

#include <functional>
#include <random>

#include "engine/layout/slot_map.h"
#include "engine/schedule/rule_chooser.h"
#include "engine/schedule/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr PlanLimits kLimits = {
    .ranks = 2, .page_tokens = 16, .pages_per_rank = 100, .vocab = 1000, .max_positions = 500};

// A scored chunk with a hole, a chunk with logits, and a decode, over placement 0.
StepPlan Good() {
  const RuleChooser chooser;
  SchedulerOptions options;
  options.stripe_tokens = 16;
  options.page_tokens = 16;
  options.pages_per_rank = 100;
  options.chunk_tokens = 400;
  Scheduler scheduler(HealthySlotMap(2), 2, options, chooser);
  for (SequenceId id = 1; id <= 3; ++id) {
    SequenceSpec spec;
    spec.id = id;
    spec.prompt.assign(id == 3 ? 40 : 100, static_cast<TokenId>(id));
    spec.max_new_tokens = id == 2 ? 0 : 5;
    spec.score = id == 2;
    scheduler.Enqueue(std::move(spec));
    scheduler.Admit();
    if (id > 1) continue;
    scheduler.Commit(scheduler.Plan());
    scheduler.AppendToken(1, 9);
  }
  StepPlan plan = scheduler.Plan();
  EXPECT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.decodes.size(), 1u);
  return plan;
}

std::string Refusal(const StepPlan& plan) {
  const absl::Status status = CheckPlan(plan, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(PlanCheckTest, PlansOfTheSchedulerPass) {
  const StepPlan plan = Good();
  EXPECT_TRUE(CheckPlan(plan, kLimits).ok()) << CheckPlan(plan, kLimits);
  StepPlan empty;
  empty.ranks = 2;
  EXPECT_TRUE(CheckPlan(empty, kLimits).ok());
}

TEST(PlanCheckTest, EverythingOutOfRangeIsNamed) {
  const struct {
    std::function<void(StepPlan&)> spoil;
    const char* message;
  } kCases[] = {
      {[](StepPlan& p) { p.ranks = 3; }, "ranks"},
      {[](StepPlan& p) { p.placements[0].stripe_tokens = 0; }, "placements[0].stripe_tokens"},
      {[](StepPlan& p) { p.placements[0].stripe_tokens = -16; }, "placements[0].stripe_tokens"},
      {[](StepPlan& p) { p.placements[0].slot_map.clear(); }, "placements[0].slot_map"},
      {[](StepPlan& p) { p.placements[0].slot_map.assign(5000, 0); }, "placements[0].slot_map"},
      {[](StepPlan& p) { p.placements[0].slot_map[3] = 2; }, "names rank 2"},
      {[](StepPlan& p) { p.placements[0].slot_map[3] = -1; }, "names rank -1"},
      {[](StepPlan& p) { p.placements.resize(9, p.placements[0]); }, "placements"},
      {[](StepPlan& p) { p.chunks.resize(65, p.chunks[0]); }, "chunks"},
      {[](StepPlan& p) { p.decodes.resize(257, p.decodes[0]); }, "decodes"},
      {[](StepPlan& p) { p.chunks[1].sequence = p.chunks[0].sequence; }, "chunks[1].sequence"},
      {[](StepPlan& p) { p.decodes[0].sequence = p.chunks[0].sequence; }, "decodes[0].sequence"},
      {[](StepPlan& p) { p.chunks[0].spans.clear(); }, "chunks[0].spans"},
      {[](StepPlan& p) { p.chunks[0].spans[0].begin = -1; }, "chunks[0].spans"},
      {[](StepPlan& p) { p.chunks[0].spans[0].end = 0; }, "chunks[0].spans"},
      {[](StepPlan& p) { p.chunks[0].spans[0].end = 501; }, "chunks[0].spans"},
      {[](StepPlan& p) {
         p.chunks[0].spans = {{0, 60}, {50, 90}};
       },
       "chunks[0].spans"},
      {[](StepPlan& p) {
         p.chunks[0].spans = {{50, 100}, {0, 50}};
       },
       "chunks[0].spans"},
      {[](StepPlan& p) { p.chunks[0].tokens.pop_back(); }, "chunks[0].tokens"},
      {[](StepPlan& p) { p.chunks[0].tokens[5] = 1000; }, "names token 1000"},
      {[](StepPlan& p) { p.chunks[0].tokens[5] = -1; }, "names token -1"},
      {[](StepPlan& p) { p.chunks[0].targets[5] = -1; }, "chunks[0].targets"},
      {[](StepPlan& p) { p.chunks[0].targets.resize(50); }, "chunks[0].targets"},
      {[](StepPlan& p) { p.chunks[0].score = false; }, "chunks[0].targets"},
      {[](StepPlan& p) { p.chunks[0].mode = TokenMode::kReplicated; }, "chunks[0].mode"},
      {[](StepPlan& p) { p.chunks[0].mode = static_cast<TokenMode>(3); }, "chunks[0].mode"},
      {[](StepPlan& p) { p.chunks[0].strategy = static_cast<RingStrategy>(4); },
       "chunks[0].strategy"},
      {[](StepPlan& p) { p.chunks[0].placement = 1; }, "chunks[0].placement"},
      {[](StepPlan& p) { p.chunks[0].placement = -1; }, "chunks[0].placement"},
      {[](StepPlan& p) { p.chunks[0].pages.pop_back(); }, "chunks[0].pages"},
      {[](StepPlan& p) { p.chunks[0].pages[1].pop_back(); }, "chunks[0].pages"},
      {[](StepPlan& p) { p.chunks[0].pages[1][1] = 100; }, "name page 100"},
      {[](StepPlan& p) { p.chunks[0].pages[1][1] = kNoPage; }, "chunks[0].pages"},
      {[](StepPlan& p) { p.chunks[0].document_starts = {-1}; }, "chunks[0].document_starts"},
      {[](StepPlan& p) {
         p.chunks[0].document_starts = {0, 7, 7};
       },
       "name 7 after 7"},
      {[](StepPlan& p) { p.chunks[0].document_starts = {p.chunks[0].end()}; },
       "chunks[0].document_starts"},
      {[](StepPlan& p) {
         p.chunks[1].spans = {{p.chunks[1].end() - 1, p.chunks[1].end()}};
         p.chunks[1].tokens.resize(1);
         p.chunks[1].targets.resize(p.chunks[1].score ? 1 : 0);
         p.chunks[1].document_starts = {0, 1};
       },
       "chunks[1].document_starts are 2 for 1 tokens"},
      {[](StepPlan& p) { p.decodes[0].document_start = -1; }, "decodes[0].document_start"},
      {[](StepPlan& p) { p.decodes[0].document_start = p.decodes[0].position + 1; },
       "decodes[0].document_start"},
      {[](StepPlan& p) { p.decodes[0].position = -1; }, "decodes[0].position"},
      {[](StepPlan& p) { p.decodes[0].position = 500; }, "decodes[0].position"},
      {[](StepPlan& p) { p.decodes[0].token = 1000; }, "decodes[0].token"},
      {[](StepPlan& p) { p.decodes[0].placement = 7; }, "decodes[0].placement"},
      {[](StepPlan& p) { p.decodes[0].pages[0].clear(); }, "decodes[0].pages"},
      {[](StepPlan& p) { p.freed = {{1}}; }, "freed"},
      {[](StepPlan& p) {
         p.freed = {{}, {100}};
       },
       "freed"},
  };
  for (const auto& c : kCases) {
    StepPlan plan = Good();
    c.spoil(plan);
    EXPECT_THAT(Refusal(plan), HasSubstr(c.message));
  }
}

TEST(PlanCheckTest, OrderedStrategyNeedsWholePages) {
  StepPlan plan = Good();
  plan.chunks[0].strategy = RingStrategy::kOrdered;
  EXPECT_TRUE(CheckPlan(plan, kLimits).ok());
  plan.placements[0].stripe_tokens = 24;
  PageId unused = 80;
  for (PrefillChunk& chunk : plan.chunks) {
    for (auto& pages : chunk.pages) pages.push_back(unused++);
  }
  for (auto& pages : plan.decodes[0].pages) pages.push_back(unused++);
  EXPECT_THAT(Refusal(plan), HasSubstr("chunks[0].strategy"));
}

TEST(PlanCheckTest, ReplicatedChunksHaveABound) {
  const RuleChooser rule;
  const PlanLimits limits = {
      .ranks = 1, .page_tokens = 16, .pages_per_rank = 100, .vocab = 10, .max_positions = 1000};
  for (const int64_t tokens : {kMaxReplicatedTokens, kMaxReplicatedTokens + 1}) {
    SchedulerOptions options;
    options.pages_per_rank = 100;
    options.page_tokens = 16;
    Scheduler scheduler(HealthySlotMap(1), 1, options, rule);
    SequenceSpec spec;
    spec.id = 1;
    spec.prompt.assign(static_cast<size_t>(tokens), 1);
    scheduler.Enqueue(std::move(spec));
    scheduler.Admit();
    StepPlan plan = scheduler.Plan();
    plan.chunks[0].mode = TokenMode::kReplicated;
    EXPECT_EQ(CheckPlan(plan, limits).ok(), tokens == kMaxReplicatedTokens);
  }
}

// Each rank of another process looks at its own pages, and together they look at all.
TEST(PlanCheckTest, ARankLooksAtItsOwnPages) {
  const auto refusing = [](const StepPlan& plan) {
    std::vector<int> ranks;
    for (int rank = 0; rank < kLimits.ranks; ++rank) {
      PlanLimits limits = kLimits;
      limits.rank = rank;
      if (!CheckPlan(plan, limits).ok()) ranks.push_back(rank);
    }
    return ranks;
  };
  EXPECT_THAT(refusing(Good()), IsEmpty());
  StepPlan plan = Good();
  plan.chunks[0].pages[1][0] = 100;
  EXPECT_THAT(refusing(plan), ElementsAre(1));
  plan = Good();
  plan.decodes[0].pages[0].pop_back();
  EXPECT_THAT(refusing(plan), ElementsAre(0));
  plan = Good();
  plan.chunks[0].pages[1][0] = plan.chunks[0].pages[1][1];
  EXPECT_THAT(refusing(plan), ElementsAre(1));
  plan = Good();
  plan.freed = {{}, {100}};
  EXPECT_THAT(refusing(plan), ElementsAre(1));
  plan = Good();
  plan.chunks[0].tokens[0] = -1;
  EXPECT_THAT(refusing(plan), ElementsAre(0, 1));
}

// Forks share what they only read; nobody shares what the step writes.
TEST(PlanCheckTest, PagesThatAreWrittenHaveOneUser) {
  StepPlan plan = Good();
  plan.chunks[1].pages[0][0] = plan.chunks[0].pages[0][0];
  EXPECT_THAT(Refusal(plan), HasSubstr("which the step writes"));

  plan = Good();
  plan.decodes[0].pages[0][0] = plan.chunks[0].pages[0][1];
  EXPECT_THAT(Refusal(plan), HasSubstr("which the step writes"));

  plan = Good();
  plan.chunks[0].pages[0][0] = plan.chunks[0].pages[0][1];
  EXPECT_THAT(Refusal(plan), HasSubstr("which the step writes"));

  plan = Good();
  DecodeToken fork = plan.decodes[0];
  fork.sequence = 99;
  const PageId own = 99;
  const Placement placement(2, plan.placements[0]);
  const auto home = static_cast<size_t>(placement.Home(fork.position));
  fork.pages[home].back() = own;
  plan.decodes.push_back(fork);
  EXPECT_TRUE(CheckPlan(plan, kLimits).ok()) << CheckPlan(plan, kLimits);
  plan.decodes.back().pages = plan.decodes[0].pages;
  EXPECT_THAT(Refusal(plan), HasSubstr("decodes[1].pages"));
}

}  // namespace
}  // namespace ringfill
