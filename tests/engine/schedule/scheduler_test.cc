#include "engine/schedule/scheduler.h"

#include <memory>
#include <set>

#include "engine/layout/slot_map.h"
#include "engine/schedule/rule_chooser.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SequenceSpec Spec(SequenceId id, int64_t prompt, int64_t max_new, bool score = false) {
  SequenceSpec spec;
  spec.id = id;
  for (int64_t i = 0; i < prompt; ++i) spec.prompt.push_back(static_cast<TokenId>(i));
  spec.max_new_tokens = max_new;
  spec.score = score;
  return spec;
}

SchedulerOptions Options(int64_t pages_per_rank) {
  SchedulerOptions options;
  options.stripe_tokens = 16;
  options.page_tokens = 16;
  options.pages_per_rank = pages_per_rank;
  options.chunk_tokens = 100;
  options.decode_reserve_tokens = 8;
  return options;
}

class SchedulerTest : public testing::Test {
 protected:
  Scheduler& Make(int ranks, const SchedulerOptions& options) {
    scheduler_ = std::make_unique<Scheduler>(HealthySlotMap(ranks), ranks, options, chooser_);
    return *scheduler_;
  }

  const RuleChooser chooser_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, ChunksCoverThePromptOnceInOrder) {
  Scheduler& scheduler = Make(2, Options(100));
  scheduler.Enqueue(Spec(1, 250, 4));
  EXPECT_THAT(scheduler.Admit(), ElementsAre(1));
  EXPECT_EQ(scheduler.PromptMissing(1), 250);
  int64_t next = 0;
  while (next < 250) {
    const StepPlan plan = scheduler.Plan();
    EXPECT_EQ(plan.ranks, 2);
    ASSERT_EQ(plan.chunks.size(), 1u);
    const PrefillChunk& chunk = plan.chunks[0];
    ASSERT_EQ(chunk.spans.size(), 1u);
    EXPECT_EQ(chunk.begin(), next);
    EXPECT_LE(chunk.end() - chunk.begin(), 100);
    ASSERT_EQ(chunk.tokens.size(), static_cast<size_t>(chunk.end() - chunk.begin()));
    EXPECT_EQ(chunk.tokens.front(), chunk.begin());
    EXPECT_EQ(chunk.wants_logits, chunk.end() == 250);
    next = chunk.end();
    scheduler.Commit(plan);
  }
  EXPECT_EQ(scheduler.PromptMissing(1), 0);
  EXPECT_TRUE(scheduler.Plan().empty());  // the first token is not sampled yet
  scheduler.AppendToken(1, 77);
  const StepPlan decode = scheduler.Plan();
  ASSERT_EQ(decode.decodes.size(), 1u);
  EXPECT_EQ(decode.decodes[0].position, 250);
  EXPECT_EQ(decode.decodes[0].token, 77);
}

TEST_F(SchedulerTest, APlanNotCommittedIsPlannedAgain) {
  Scheduler& scheduler = Make(1, Options(100));
  scheduler.Enqueue(Spec(1, 50, 1));
  scheduler.Admit();
  EXPECT_EQ(scheduler.Plan().chunks[0].begin(), 0);
  EXPECT_EQ(scheduler.Plan().chunks[0].begin(), 0);
}

TEST_F(SchedulerTest, ChunksTakenOutOfACommittedPlanAreStillMissing) {
  Scheduler& scheduler = Make(1, Options(100));
  scheduler.Enqueue(Spec(1, 30, 1));
  scheduler.Enqueue(Spec(2, 30, 1));
  scheduler.Admit();
  StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 2u);
  plan.chunks.erase(plan.chunks.begin());
  scheduler.Commit(plan);
  EXPECT_EQ(scheduler.PromptMissing(1), 30);
  EXPECT_EQ(scheduler.PromptMissing(2), 0);
}

TEST_F(SchedulerTest, TargetsAreTheFollowingTokens) {
  Scheduler& scheduler = Make(1, Options(100));
  scheduler.Enqueue(Spec(1, 150, 0, true));
  scheduler.Admit();
  const StepPlan first = scheduler.Plan();
  const int64_t cut = first.chunks[0].end();
  EXPECT_EQ(first.chunks[0].targets.size(), static_cast<size_t>(cut));
  EXPECT_EQ(first.chunks[0].targets.back(), cut);
  scheduler.Commit(first);
  const StepPlan second = scheduler.Plan();
  EXPECT_EQ(second.chunks[0].targets.size(), static_cast<size_t>(150 - cut - 1));
  EXPECT_EQ(second.chunks[0].targets.front(), cut + 1);
  EXPECT_FALSE(second.chunks[0].wants_logits);
}

TEST_F(SchedulerTest, ReservesPromptAndDecodeAtAdmissionFirstComeFirstServed) {
  Scheduler& scheduler = Make(1, Options(10));
  scheduler.Enqueue(Spec(1, 100, 50));  // 100 + 8 reserved: 7 pages
  scheduler.Enqueue(Spec(2, 60, 1));    // 4 pages: does not fit beside it
  scheduler.Enqueue(Spec(3, 10, 1));    // would fit, but comes later
  EXPECT_THAT(scheduler.Admit(), ElementsAre(1));
  EXPECT_EQ(scheduler.pages_used(0), 7);
  EXPECT_EQ(scheduler.queued(), 2);
  EXPECT_THAT(scheduler.PagesOf(1), ElementsAre(7));
  EXPECT_THAT(scheduler.PagesOf(2), IsEmpty());
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.pages_used(0), 0);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(2, 3));
}

TEST_F(SchedulerTest, RefusesWhatCanNeverFitWithTheNumbers) {
  const Scheduler& scheduler = Make(2, Options(10));
  EXPECT_TRUE(scheduler.CheckFits(320, 1).ok());
  const absl::Status status = scheduler.CheckFits(400, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("400"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("10"));
}

TEST_F(SchedulerTest, StarvedDecodesAreNamedAndGoOnWhenPagesComeFree) {
  SchedulerOptions options = Options(2);
  options.decode_reserve_tokens = 0;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 16, 50));
  scheduler.Enqueue(Spec(2, 16, 50));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.AppendToken(2, 5);
  EXPECT_TRUE(scheduler.Plan().empty());
  EXPECT_THAT(scheduler.starved(), ElementsAre(1, 2));
  scheduler.Remove(2);
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
  EXPECT_TRUE(scheduler.starved().empty());
}

TEST_F(SchedulerTest, PagesThatComeFreeGoToStarvedSequencesBeforeTheQueue) {
  SchedulerOptions options = Options(3);
  options.decode_reserve_tokens = 0;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 16, 50));
  scheduler.Enqueue(Spec(2, 32, 1));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.Enqueue(Spec(3, 32, 1));  // would take both pages that sequence 2 gives back
  EXPECT_TRUE(scheduler.Plan().decodes.empty());
  EXPECT_THAT(scheduler.starved(), ElementsAre(1));
  scheduler.Remove(2);
  EXPECT_TRUE(scheduler.Admit().empty());
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
  EXPECT_TRUE(scheduler.Admit().empty());  // one page is left, it needs two
  scheduler.Remove(1);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(3));
}

// Whoever runs a plan may end sequences before it says what came of it.
TEST_F(SchedulerTest, SequencesThatAreGoneArePassedOverWhenTheirStepEnds) {
  Scheduler& scheduler = Make(1, Options(10));
  for (const SequenceId id : {1, 2}) scheduler.Enqueue(Spec(id, 5, 9));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.Enqueue(Spec(3, 5, 9));
  scheduler.Enqueue(Spec(4, 5, 9));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.AppendToken(2, 5);
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.decodes.size(), 2u);
  ASSERT_EQ(plan.chunks.size(), 2u);
  scheduler.Remove(2);
  scheduler.Remove(3);
  scheduler.Abandon(plan);
  EXPECT_EQ(scheduler.PromptMissing(4), 5);
  const StepPlan again = scheduler.Plan();
  ASSERT_EQ(again.chunks.size(), 1u);
  EXPECT_EQ(again.chunks[0].sequence, 4u);
  ASSERT_EQ(again.decodes.size(), 1u);
  EXPECT_EQ(again.decodes[0].sequence, 1u);
  scheduler.Commit(plan);
  EXPECT_EQ(scheduler.PromptMissing(4), 0);
}

TEST_F(SchedulerTest, PausedSequencesAreNotDecoded) {
  Scheduler& scheduler = Make(1, Options(10));
  scheduler.Enqueue(Spec(1, 5, 9));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.SetPaused(1, true);
  EXPECT_TRUE(scheduler.Plan().empty());
  scheduler.SetPaused(1, false);
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
}

TEST_F(SchedulerTest, OneStepPacksManyPromptsUpToItsBounds) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 1000;
  options.max_running = 200;
  Scheduler& scheduler = Make(2, options);
  for (SequenceId id = 1; id <= 100; ++id) scheduler.Enqueue(Spec(id, 5, 1));
  scheduler.Admit();
  const StepPlan plan = scheduler.Plan();
  EXPECT_EQ(plan.chunks.size(), static_cast<size_t>(kMaxChunksPerStep));
  EXPECT_EQ(plan.placements.size(), 1u);
  scheduler.Commit(plan);
  EXPECT_EQ(scheduler.Plan().chunks.size(), 100u - kMaxChunksPerStep);
}

TEST_F(SchedulerTest, CutsFallOnPeriodsThenStripesThenAnywhere) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 200;  // a period is 2 * 2 * 16 = 64
  Scheduler& scheduler = Make(2, options);
  scheduler.Enqueue(Spec(1, 210, 1));
  scheduler.Enqueue(Spec(2, 1000, 1));
  scheduler.Admit();
  StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);  // what is left of the budget is too little for another
  EXPECT_EQ(plan.chunks[0].end(), 192);
  scheduler.Commit(plan);
  plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].spans, (std::vector<Span>{{192, 210}}));
  EXPECT_EQ(plan.chunks[1].end(), 128);  // of 182: a period
  scheduler.Commit(plan);
  scheduler.Remove(2);

  scheduler.Enqueue(Spec(3, 158, 1));
  scheduler.Enqueue(Spec(4, 1000, 1));
  scheduler.Admit();
  plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[1].end(), 32);  // of 42: no period, but a stripe
}

TEST_F(SchedulerTest, StepsFillTheBudgetWithPromptsOfAnyLengths) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 500;
  Scheduler& scheduler = Make(3, options);
  int64_t all = 0;
  for (SequenceId id = 1; id <= 40; ++id) {
    const auto tokens = static_cast<int64_t>(1 + id * id * 37 % 211);
    scheduler.Enqueue(Spec(id, tokens, 1));
    all += tokens;
  }
  scheduler.Admit();
  int64_t done = 0, steps = 0;
  while (done < all) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_FALSE(plan.empty());
    int64_t tokens = 0;
    for (const PrefillChunk& chunk : plan.chunks) {
      tokens += static_cast<int64_t>(chunk.tokens.size());
    }
    EXPECT_LE(tokens, 500);
    done += tokens;
    ++steps;
    scheduler.Commit(plan);
  }
  EXPECT_LE(steps, all / 400 + 1);
}

TEST_F(SchedulerTest, ShortPromptsAreDealtOrReplicated) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 2000;
  Scheduler& scheduler = Make(4, options);  // a period is 128
  scheduler.Enqueue(Spec(1, 512, 1));
  scheduler.Enqueue(Spec(2, 511, 1));
  scheduler.Enqueue(Spec(3, 32, 1));
  scheduler.Admit();
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[0].mode, TokenMode::kHome);
  EXPECT_EQ(plan.chunks[1].mode, TokenMode::kDealt);
  EXPECT_EQ(plan.chunks[2].mode, TokenMode::kReplicated);
}

TEST_F(SchedulerTest, ReplicatedChunksAreShortAndNeverScored) {
  const ForcedChooser replicated(TokenMode::kReplicated, RingStrategy::kPassKv, chooser_);
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 2000;
  Scheduler scheduler(HealthySlotMap(2), 2, options, replicated);
  scheduler.Enqueue(Spec(1, 600, 1));
  scheduler.Enqueue(Spec(2, 600, 1, true));
  scheduler.Admit();
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].mode, TokenMode::kReplicated);
  EXPECT_EQ(plan.chunks[0].end(), kMaxReplicatedTokens);
  EXPECT_EQ(plan.chunks[0].tokens.size(), static_cast<size_t>(kMaxReplicatedTokens));
  EXPECT_FALSE(plan.chunks[0].wants_logits);
  EXPECT_EQ(plan.chunks[1].mode, TokenMode::kDealt);
  EXPECT_EQ(plan.chunks[1].end(), 600);
}

TEST_F(SchedulerTest, SequencesOfOneStepMayHaveTheirOwnPlacements) {
  SchedulerOptions options = Options(1000);
  options.layout = Layout::kZigzag;
  options.chunk_tokens = 5000;
  Scheduler& scheduler = Make(2, options);
  scheduler.Enqueue(Spec(1, 640, 1));
  scheduler.Enqueue(Spec(2, 320, 1));
  scheduler.Enqueue(Spec(3, 640, 1));
  scheduler.Admit();
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 3u);
  ASSERT_EQ(plan.placements.size(), 2u);
  EXPECT_EQ(plan.placements[0].stripe_tokens, 160);
  EXPECT_EQ(plan.placements[1].stripe_tokens, 80);
  EXPECT_EQ(plan.chunks[0].placement, 0);
  EXPECT_EQ(plan.chunks[1].placement, 1);
  EXPECT_EQ(plan.chunks[2].placement, 0);
}

TEST_F(SchedulerTest, FreedPagesAreListedInTheNextPlanThatRuns) {
  SchedulerOptions options = Options(10);
  options.list_freed = true;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 20, 1));
  scheduler.Admit();
  EXPECT_THAT(scheduler.Plan().freed, ElementsAre(IsEmpty()));
  scheduler.Remove(1);
  EXPECT_TRUE(scheduler.Plan().freed.empty());  // nothing runs
  scheduler.Enqueue(Spec(2, 5, 1));
  scheduler.Admit();
  EXPECT_THAT(scheduler.Plan().freed, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(scheduler.Plan().freed, ElementsAre(IsEmpty()));
}

// ---- strict

SchedulerOptions Strict() {
  SchedulerOptions options = Options(1000);
  options.strict = true;
  return options;
}

TEST_F(SchedulerTest, StrictChunksEndOnMultiplesWhateverElseRuns) {
  for (const bool crowded : {false, true}) {
    Scheduler& scheduler = Make(2, Strict());
    if (crowded) scheduler.Enqueue(Spec(1, 130, 1));
    scheduler.Enqueue(Spec(2, 250, 1));
    scheduler.Admit();
    std::vector<Span> spans;
    for (int step = 0; step < 10; ++step) {
      const StepPlan plan = scheduler.Plan();
      int64_t tokens = 0;
      for (const PrefillChunk& chunk : plan.chunks) {
        EXPECT_EQ(chunk.mode, TokenMode::kHome);
        EXPECT_EQ(chunk.strategy, RingStrategy::kOrdered);
        tokens += static_cast<int64_t>(chunk.tokens.size());
        if (chunk.sequence == 2) spans.insert(spans.end(), chunk.spans.begin(), chunk.spans.end());
      }
      EXPECT_LE(tokens, 100);
      scheduler.Commit(plan);
    }
    EXPECT_EQ(spans, (std::vector<Span>{{0, 100}, {100, 200}, {200, 250}}));
  }
}

TEST_F(SchedulerTest, StrictDecodesAreChunksOfOneToken) {
  Scheduler& scheduler = Make(2, Strict());
  scheduler.Enqueue(Spec(1, 5, 9));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 7);
  const StepPlan plan = scheduler.Plan();
  EXPECT_TRUE(plan.decodes.empty());
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].spans, (std::vector<Span>{{5, 6}}));
  EXPECT_THAT(plan.chunks[0].tokens, ElementsAre(7));
  EXPECT_TRUE(plan.chunks[0].wants_logits);
  EXPECT_EQ(plan.chunks[0].strategy, RingStrategy::kOrdered);
}

// More decodes than a step has places for chunks: all are served in turn, and a prompt gets in.
TEST_F(SchedulerTest, StrictDecodesTakeTurns) {
  SchedulerOptions options = Strict();
  options.max_running = 200;
  options.chunk_tokens = 1000;
  Scheduler& scheduler = Make(1, options);
  for (SequenceId id = 1; id <= 100; ++id) scheduler.Enqueue(Spec(id, 5, 100));
  scheduler.Admit();
  for (int step = 0; step < 2; ++step) scheduler.Commit(scheduler.Plan());
  for (SequenceId id = 1; id <= 100; ++id) scheduler.AppendToken(id, 1);
  scheduler.Enqueue(Spec(101, 10, 1));
  scheduler.Admit();
  std::map<SequenceId, int> served;
  for (int step = 0; step < 10; ++step) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_EQ(plan.chunks.size(), static_cast<size_t>(kMaxChunksPerStep));
    scheduler.Commit(plan);
    for (const PrefillChunk& chunk : plan.chunks) {
      ++served[chunk.sequence];
      if (chunk.sequence <= 100) scheduler.AppendToken(chunk.sequence, 1);
    }
  }
  EXPECT_EQ(served[101], 1);
  for (SequenceId id = 1; id <= 100; ++id) {
    EXPECT_GE(served[id], 6);
    EXPECT_LE(served[id], 7);
  }
}

// ---- pages that are there already

class AdoptTest : public SchedulerTest {
 protected:
  // Sequence 1 is prefilled; 2 starts with its pages, of which `valid` is to be used.
  Scheduler& MakeAdopted(int ranks, int64_t prompt, std::vector<Span> valid, int64_t max_new = 5) {
    SchedulerOptions options = Options(1000);
    options.stripe_tokens = 32;
    options.chunk_tokens = 5000;
    Scheduler& scheduler = Make(ranks, options);
    scheduler.Enqueue(Spec(1, prompt, 1));
    scheduler.Admit();
    scheduler.Commit(scheduler.Plan());
    SequenceSpec spec = Spec(2, prompt, max_new);
    spec.valid = std::move(valid);
    spec.pages = scheduler.SharePages(1);
    scheduler.Enqueue(std::move(spec));
    EXPECT_THAT(scheduler.Admit(), ElementsAre(2));
    return scheduler;
  }
};

TEST_F(AdoptTest, OnlyWhatIsMissingIsComputedInPagesOfItsOwn) {
  Scheduler& scheduler = MakeAdopted(2, 200, {{0, 64}, {96, 160}});
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  const PrefillChunk& chunk = plan.chunks[0];
  EXPECT_EQ(chunk.spans, (std::vector<Span>{{64, 96}, {160, 200}}));
  EXPECT_EQ(chunk.tokens.size(), 72u);
  EXPECT_EQ(chunk.tokens[0], 64);
  EXPECT_EQ(chunk.tokens[32], 160);
  EXPECT_TRUE(chunk.wants_logits);
  const Placement placement(2, plan.placements[0]);
  scheduler.SetPaused(1, false);
  const std::vector<PageList> first = scheduler.SharePages(1);
  for (int64_t p = 0; p < 200; ++p) {
    const auto rank = static_cast<size_t>(placement.Home(p));
    const auto page = static_cast<size_t>(placement.LocalToken(p) / 16);
    const bool shared = p < 64 || (p >= 96 && p < 160);
    EXPECT_EQ(chunk.pages[rank][page] == first[rank].pages()[page], shared) << p;
  }
}

// A prompt that ends with its page: only the rule for the last position asks for anything.
TEST_F(AdoptTest, WholePagesOfAWholePrompt) {
  EXPECT_EQ(MakeAdopted(2, 192, {{0, 192}}).Plan().chunks[0].spans,
            (std::vector<Span>{{176, 192}}));
  EXPECT_TRUE(MakeAdopted(2, 192, {{0, 192}}, 0).Plan().empty());
}

// Positions that are valid in a page which has to be written are computed again in a new one.
TEST_F(AdoptTest, SpansMayBeginAndEndInsidePages) {
  Scheduler& scheduler = MakeAdopted(2, 200, {{0, 70}, {99, 161}});
  EXPECT_EQ(scheduler.Plan().chunks[0].spans, (std::vector<Span>{{64, 112}, {160, 200}}));
}

TEST_F(AdoptTest, WholePromptsComputeTheirLastPageForItsLogits) {
  Scheduler& scheduler = MakeAdopted(2, 200, {{0, 200}});
  EXPECT_EQ(scheduler.Plan().chunks[0].spans, (std::vector<Span>{{192, 200}}));
  EXPECT_TRUE(scheduler.Plan().chunks[0].wants_logits);
}

TEST_F(AdoptTest, PagesOfNobodyElseAreWrittenInPlace) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 5000;
  Scheduler& scheduler = Make(2, options);
  scheduler.Enqueue(Spec(1, 200, 1));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  SequenceSpec spec = Spec(2, 200, 5);
  spec.valid = {{0, 70}, {99, 161}};
  spec.pages = scheduler.SharePages(1);
  scheduler.Remove(1);
  const int64_t used = scheduler.pages_used(0) + scheduler.pages_used(1);
  scheduler.Enqueue(std::move(spec));
  scheduler.Admit();
  EXPECT_EQ(scheduler.Plan().chunks[0].spans, (std::vector<Span>{{70, 99}, {161, 200}}));
  EXPECT_EQ(scheduler.pages_used(0) + scheduler.pages_used(1), used);
}

TEST_F(AdoptTest, PositionsWithoutPagesAreHoles) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 5000;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 100, 1));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  SequenceSpec spec = Spec(2, 100, 1);
  spec.valid = {{0, 100}};
  spec.pages = scheduler.SharePages(1);
  spec.pages[0].Drop(2);
  scheduler.Enqueue(std::move(spec));
  scheduler.Admit();
  EXPECT_EQ(scheduler.Plan().chunks[0].spans, (std::vector<Span>{{32, 48}, {96, 100}}));
}

TEST_F(AdoptTest, HolesAreFilledChunkByChunkBeforeDecoding) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 40;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 200, 1));
  scheduler.Admit();
  while (scheduler.PromptMissing(1) > 0) scheduler.Commit(scheduler.Plan());
  SequenceSpec spec = Spec(2, 200, 5);
  spec.valid = {{32, 96}, {128, 192}};
  spec.pages = scheduler.SharePages(1);
  scheduler.Enqueue(std::move(spec));
  scheduler.Admit();
  std::vector<std::vector<Span>> chunks;
  while (scheduler.PromptMissing(2) > 0) {
    const StepPlan plan = scheduler.Plan();
    EXPECT_TRUE(plan.decodes.empty());
    chunks.push_back(plan.chunks[0].spans);
    scheduler.Commit(plan);
  }
  EXPECT_THAT(chunks, ElementsAre(std::vector<Span>{{0, 32}, {96, 104}},
                                  std::vector<Span>{{104, 128}, {192, 200}}));
  scheduler.AppendToken(2, 1);
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
}

TEST_F(AdoptTest, ScoredSequencesStartFromNothing) {
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 5000;
  Scheduler& scheduler = Make(1, options);
  scheduler.Enqueue(Spec(1, 100, 1));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  SequenceSpec spec = Spec(2, 100, 0, true);
  spec.valid = {{0, 100}};
  spec.pages = scheduler.SharePages(1);
  scheduler.Enqueue(std::move(spec));
  scheduler.Admit();
  EXPECT_EQ(scheduler.Plan().chunks[0].spans, (std::vector<Span>{{0, 100}}));
}

// A queue that holds on to all pages must not block its own head.
TEST_F(AdoptTest, PagesThatWaitInTheQueueAreNoClaim) {
  Scheduler& scheduler = Make(1, Options(8));
  scheduler.Enqueue(Spec(1, 100, 1));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  SequenceSpec late = Spec(3, 100, 1);
  late.valid = {{0, 96}};
  late.pages = scheduler.SharePages(1);
  scheduler.Enqueue(Spec(2, 120, 1));
  scheduler.Enqueue(std::move(late));
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.pages_used(0), 6);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(2));
  scheduler.Remove(2);
  EXPECT_THAT(scheduler.Admit(), ElementsAre(3));
  EXPECT_EQ(scheduler.PromptMissing(3), 100);
}

TEST_F(SchedulerTest, ChunksAndDecodesCarryTheDocumentsThatTheyNeed) {
  Scheduler& scheduler = Make(2, Options(100));
  SequenceSpec spec = Spec(1, 150, 4);
  spec.document_starts = {0, 40, 90, 120};
  scheduler.Enqueue(std::move(spec));
  scheduler.Admit();
  StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].end(), 64);
  EXPECT_THAT(plan.chunks[0].document_starts, ElementsAre(0, 40));
  scheduler.Commit(plan);
  plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_THAT(plan.chunks[0].document_starts, ElementsAre(40, 90, 120));
  scheduler.Commit(plan);
  scheduler.AppendToken(1, 7);
  plan = scheduler.Plan();
  ASSERT_EQ(plan.decodes.size(), 1u);
  EXPECT_EQ(plan.decodes[0].position, 150);
  EXPECT_EQ(plan.decodes[0].document_start, 120);
}

}  // namespace
}  // namespace ringfill
