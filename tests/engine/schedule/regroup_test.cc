#include <map>
#include <memory>

#include "engine/layout/slot_map.h"
#include "engine/schedule/rule_chooser.h"
#include "engine/schedule/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kPage = 16;
constexpr int kStripe = 32;

class RegroupTest : public testing::Test {
 protected:
  Scheduler& Make(int ranks, int64_t pages_per_rank, Layout layout = Layout::kSnake) {
    options_.layout = layout;
    options_.stripe_tokens = kStripe;
    options_.page_tokens = kPage;
    options_.pages_per_rank = pages_per_rank;
    options_.chunk_tokens = 10000;
    options_.decode_reserve_tokens = 0;
    scheduler_ = std::make_unique<Scheduler>(HealthySlotMap(ranks), ranks, options_, chooser_);
    return *scheduler_;
  }

  void Start(SequenceId id, int64_t prompt, int64_t max_new) {
    SequenceSpec spec;
    spec.id = id;
    spec.prompt.assign(static_cast<size_t>(prompt), 1);
    spec.max_new_tokens = max_new;
    scheduler_->Enqueue(std::move(spec));
    ASSERT_THAT(scheduler_->Admit(), ElementsAre(id));
  }

  void Step() {
    const StepPlan plan = scheduler_->Plan();
    ASSERT_FALSE(plan.empty());
    scheduler_->Commit(plan);
    for (const PrefillChunk& chunk : plan.chunks) {
      if (chunk.wants_logits) scheduler_->AppendToken(chunk.sequence, 2);
    }
    for (const DecodeToken& decode : plan.decodes) scheduler_->AppendToken(decode.sequence, 2);
  }

  Regrouped Regroup(const std::vector<int>& from) {
    return scheduler_->Regroup(from, RedealSlots(scheduler_->slot_map(), from));
  }

  SchedulerOptions options_;
  const RuleChooser chooser_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(RegroupTest, ADeadRanksStripesAreLostAndNothingElse) {
  Scheduler& scheduler = Make(3, 100);
  Start(1, 600, 5);
  Step();
  Step();
  const Placement before(3, kStripe, scheduler.slot_map());
  const Regrouped result = Regroup({0, 2});
  EXPECT_THAT(result.unfit, IsEmpty());
  ASSERT_EQ(result.lost.size(), 1u);
  EXPECT_EQ(result.lost[0].id, 1u);
  SpanSet expected;
  for (int64_t p = 0; p < 601; ++p) {
    if (before.Home(p) == 1) expected.Add({p, p + 1});
  }
  EXPECT_EQ(result.lost[0].spans, expected.spans());
  EXPECT_EQ(scheduler.ranks(), 2);
  const StepPlan plan = scheduler.Plan();
  EXPECT_THAT(plan.decodes, IsEmpty());  // it waits for its holes
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].spans, expected.spans());
  EXPECT_FALSE(plan.chunks[0].wants_logits);
  scheduler.Commit(plan);
  EXPECT_EQ(scheduler.recomputed_tokens(), expected.size());
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
}

TEST_F(RegroupTest, PagesStayWhereTheyAre) {
  Scheduler& scheduler = Make(3, 100);
  Start(1, 600, 5);
  Step();
  const Placement before(3, kStripe, scheduler.slot_map());
  std::map<int64_t, PageId> page_of;
  std::vector<PageList> held = scheduler.SharePages(1);
  for (int64_t p = 0; p < 600; p += kPage) {
    const auto rank = static_cast<size_t>(before.Home(p));
    page_of[p] = held[rank].pages()[static_cast<size_t>(before.LocalToken(p) / kPage)];
  }
  held.clear();
  const std::vector<int> from = {2, 0};
  Regroup(from);
  held = scheduler.SharePages(1);
  const Placement after(2, kStripe, scheduler.slot_map());
  int stayed = 0;
  for (int64_t p = 0; p < 600; p += kPage) {
    const auto rank = static_cast<size_t>(after.Home(p));
    if (before.Home(p) == 1) continue;
    EXPECT_EQ(from[rank], before.Home(p));
    EXPECT_EQ(held[rank].pages()[static_cast<size_t>(after.LocalToken(p) / kPage)], page_of[p]);
    ++stayed;
  }
  EXPECT_GT(stayed, 20);
}

TEST_F(RegroupTest, GeneratedTokensCanBeHolesToo) {
  Scheduler& scheduler = Make(2, 100);
  Start(1, 10, 200);
  for (int i = 0; i < 150; ++i) Step();
  const Regrouped result = Regroup({1});
  ASSERT_EQ(result.lost.size(), 1u);
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].begin(), 0);
  EXPECT_GT(plan.chunks[0].end(), 100);
  EXPECT_EQ(plan.chunks[0].tokens.front(), 1);
  EXPECT_EQ(plan.chunks[0].tokens.back(), 2);
}

TEST_F(RegroupTest, AFailedStepOnAWholeRingIsPlannedAgainAndCounted) {
  Scheduler& scheduler = Make(2, 100);
  Start(1, 100, 5);
  const StepPlan failed = scheduler.Plan();
  scheduler.Abandon(failed);
  const Regrouped result = Regroup({0, 1});
  EXPECT_THAT(result.lost, IsEmpty());
  const StepPlan again = scheduler.Plan();
  EXPECT_EQ(again.chunks[0].spans, failed.chunks[0].spans);
  EXPECT_EQ(again.chunks[0].pages, failed.chunks[0].pages);
  EXPECT_EQ(scheduler.recomputed_tokens(), 0);
  scheduler.Commit(again);
  EXPECT_EQ(scheduler.recomputed_tokens(), 100);
}

TEST_F(RegroupTest, NewcomersTakeOverBetweenSteps) {
  Scheduler& scheduler = Make(2, 100);
  Start(1, 640, 50);
  Step();
  const Regrouped result = Regroup({0, 1, -1});
  ASSERT_EQ(result.lost.size(), 1u);
  int64_t lost = 0;
  for (const Span& span : result.lost[0].spans) lost += span.size();
  // Two of eight slots, over one whole period of 512 tokens and a quarter.
  EXPECT_LE(lost, 640 * 3 / 8);
  EXPECT_GE(lost, 640 / 8);
  EXPECT_EQ(scheduler.ranks(), 3);
  Step();
  EXPECT_EQ(scheduler.recomputed_tokens(), lost);
  EXPECT_GT(scheduler.pages_used(2), 0);
}

TEST_F(RegroupTest, WithoutWholePagesPerStripeEverythingIsLost) {
  Make(3, 100, Layout::kTokenStripes);
  Start(1, 300, 5);
  Step();
  EXPECT_THAT(Regroup({0, 1, 2}).lost, IsEmpty());  // nobody has changed
  const Regrouped result = Regroup({0, 1});
  ASSERT_EQ(result.lost.size(), 1u);
  EXPECT_EQ(result.lost[0].spans, (std::vector<Span>{{0, 300}}));
}

TEST_F(RegroupTest, TheYoungestMakeRoomAndWaitInFront) {
  Scheduler& scheduler = Make(2, 12);
  Start(1, 160, 1);  // 10 pages
  Start(2, 100, 5);  // 7
  Start(3, 100, 5);  // 7
  SequenceSpec waiting;
  waiting.id = 4;
  waiting.prompt.assign(20, 1);
  scheduler.Enqueue(std::move(waiting));
  const Regrouped result = Regroup({0});
  EXPECT_THAT(result.requeued, ElementsAre(2, 3));
  EXPECT_THAT(result.unfit, IsEmpty());
  EXPECT_EQ(scheduler.pages_used(0), 10);
  EXPECT_EQ(scheduler.queued(), 3);
  EXPECT_THAT(scheduler.Admit(), IsEmpty());  // 4 does not overtake 2
  EXPECT_EQ(scheduler.Plan().chunks.size(), 1u);
  scheduler.Remove(1);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(2));
  scheduler.Remove(2);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(3, 4));
}

// What was generated stays: it is computed again and goes on behind its last token.
TEST_F(RegroupTest, WhatWaitsAgainGoesOnWhereItWas) {
  Scheduler& scheduler = Make(2, 12);
  Start(1, 100, 5);
  Start(2, 100, 90);
  for (int i = 0; i < 4; ++i) Step();  // four tokens of each
  const StepPlan failed = scheduler.Plan();
  scheduler.Abandon(failed);
  const Regrouped result = Regroup({1});
  EXPECT_THAT(result.requeued, ElementsAre(2));
  EXPECT_EQ(scheduler.pages_used(0), 7);
  scheduler.SetPaused(2, true);
  EXPECT_THAT(scheduler.Admit(), IsEmpty());
  scheduler.Remove(1);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(2));
  const StepPlan again = scheduler.Plan();
  ASSERT_EQ(again.chunks.size(), 1u);
  EXPECT_EQ(again.chunks[0].spans, (std::vector<Span>{{0, 103}}));
  EXPECT_EQ(again.chunks[0].tokens[99], 1);
  EXPECT_EQ(again.chunks[0].tokens[102], 2);
  EXPECT_FALSE(again.chunks[0].wants_logits);
  const int64_t before = scheduler.recomputed_tokens();
  scheduler.Commit(again);
  EXPECT_EQ(scheduler.recomputed_tokens() - before, 103);
  EXPECT_TRUE(scheduler.Plan().empty());  // its client does not read
  scheduler.SetPaused(2, false);
  const StepPlan decode = scheduler.Plan();
  ASSERT_EQ(decode.decodes.size(), 1u);
  EXPECT_EQ(decode.decodes[0].position, 103);
}

// Room for what it has generated counts, not for its prompt alone.
TEST_F(RegroupTest, WhatHasGrownBeyondTheRingThatIsLeftNeverFits) {
  Scheduler& scheduler = Make(2, 7);
  Start(1, 20, 200);
  for (int i = 0; i < 130; ++i) Step();  // 149 tokens: 10 pages
  EXPECT_THAT(Regroup({1}).unfit, ElementsAre(1));
  scheduler.Remove(1);
}

TEST_F(RegroupTest, WhatWaitsAgainAndHasGrownNeverFitsASmallerRing) {
  Scheduler& scheduler = Make(3, 8);
  Start(1, 200, 2);  // 13 pages
  Start(2, 20, 200);
  for (int i = 0; i < 130; ++i) {
    const StepPlan plan = scheduler.Plan();
    scheduler.Commit(plan);
    for (const PrefillChunk& chunk : plan.chunks) scheduler.AppendToken(chunk.sequence, 2);
    for (const DecodeToken& decode : plan.decodes) {
      if (decode.sequence == 2) scheduler.AppendToken(2, 2);
    }
  }
  EXPECT_THAT(Regroup({0, 1}).requeued, ElementsAre(2));
  const Regrouped result = Regroup({0});
  EXPECT_THAT(result.unfit, ElementsAre(1, 2));
}

TEST_F(RegroupTest, WhatTheNewRingCanNeverHoldMakesNobodyElseLeave) {
  Scheduler& scheduler = Make(2, 12);
  Start(1, 300, 5);  // 19 pages
  Start(2, 50, 5);   // 4
  const Regrouped result = Regroup({1});
  EXPECT_THAT(result.unfit, ElementsAre(1));
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.Plan().chunks.size(), 1u);
  EXPECT_EQ(scheduler.CheckFits(300, 1).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RegroupTest, QueuedSequencesMoveAlong) {
  Scheduler& scheduler = Make(2, 12);
  Start(1, 300, 5);
  SequenceSpec large, small;
  large.id = 2;
  large.prompt.assign(250, 1);
  small.id = 3;
  small.prompt.assign(50, 1);
  scheduler.Enqueue(std::move(large));
  scheduler.Enqueue(std::move(small));
  const Regrouped result = Regroup({0});
  EXPECT_THAT(result.unfit, ElementsAre(1, 2));
  EXPECT_EQ(scheduler.queued(), 2);  // until it is removed
  scheduler.Remove(1);
  scheduler.Remove(2);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(3));
  EXPECT_EQ(scheduler.Plan().chunks[0].end(), 50);
}

TEST_F(RegroupTest, ScoresAreNotGivenTwice) {
  Make(2, 100);
  options_.chunk_tokens = 256;
  scheduler_ = std::make_unique<Scheduler>(HealthySlotMap(2), 2, options_, chooser_);
  SequenceSpec spec;
  spec.id = 1;
  spec.prompt.assign(600, 1);
  spec.score = true;
  scheduler_->Enqueue(std::move(spec));
  scheduler_->Admit();
  scheduler_->Commit(scheduler_->Plan());
  Regroup({1});
  const StepPlan repair = scheduler_->Plan();
  ASSERT_EQ(repair.chunks.size(), 1u);
  EXPECT_FALSE(repair.chunks[0].score);
  EXPECT_LE(repair.chunks[0].end(), 256);
  scheduler_->Commit(repair);
  const StepPlan next = scheduler_->Plan();
  EXPECT_TRUE(next.chunks[0].score);
  EXPECT_EQ(next.chunks[0].begin(), 256);
}

TEST_F(RegroupTest, DeathTestUnfitSequencesMustGoFirst) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Scheduler& scheduler = Make(2, 12);
  Start(1, 300, 5);
  Regroup({1});
  EXPECT_DEATH(scheduler.Plan(), "check failed");
}

}  // namespace
}  // namespace ringfill
