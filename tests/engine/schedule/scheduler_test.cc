#include "engine/schedule/scheduler.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

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
  options.page_tokens = 16;
  options.pages_per_rank = pages_per_rank;
  options.chunk_tokens = 100;
  options.decode_reserve_tokens = 8;
  return options;
}

TEST(SchedulerTest, ChunksCoverThePromptOnceInOrder) {
  const Placement placement(2, 16);
  Scheduler scheduler(placement, Options(100));
  scheduler.Enqueue(Spec(1, 250, 4));
  EXPECT_THAT(scheduler.Admit(), testing::ElementsAre(1));
  int64_t next = 0;
  while (next < 250) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_EQ(plan.chunks.size(), 1u);
    const PrefillChunk& chunk = plan.chunks[0];
    EXPECT_EQ(chunk.begin, next);
    EXPECT_LE(chunk.end - chunk.begin, 100);
    ASSERT_EQ(chunk.tokens.size(), static_cast<size_t>(chunk.end - chunk.begin));
    EXPECT_EQ(chunk.tokens.front(), chunk.begin);
    EXPECT_EQ(chunk.wants_logits, chunk.end == 250);
    next = chunk.end;
    scheduler.Commit(plan);
  }
  EXPECT_TRUE(scheduler.Plan().empty());  // the first token is not sampled yet
  scheduler.AppendToken(1, 77);
  const StepPlan decode = scheduler.Plan();
  ASSERT_EQ(decode.decodes.size(), 1u);
  EXPECT_EQ(decode.decodes[0].position, 250);
  EXPECT_EQ(decode.decodes[0].token, 77);
}

TEST(SchedulerTest, APlanNotCommittedIsPlannedAgain) {
  const Placement placement(1, 16);
  Scheduler scheduler(placement, Options(100));
  scheduler.Enqueue(Spec(1, 50, 1));
  scheduler.Admit();
  EXPECT_EQ(scheduler.Plan().chunks[0].begin, 0);
  EXPECT_EQ(scheduler.Plan().chunks[0].begin, 0);
}

TEST(SchedulerTest, TargetsAreTheFollowingTokens) {
  const Placement placement(1, 16);
  Scheduler scheduler(placement, Options(100));
  scheduler.Enqueue(Spec(1, 150, 0, true));
  scheduler.Admit();
  const StepPlan first = scheduler.Plan();
  EXPECT_EQ(first.chunks[0].targets.size(), 100u);
  EXPECT_EQ(first.chunks[0].targets.back(), 100);
  scheduler.Commit(first);
  const StepPlan second = scheduler.Plan();
  EXPECT_EQ(second.chunks[0].targets.size(), 49u);
  EXPECT_EQ(second.chunks[0].targets.front(), 101);
  EXPECT_FALSE(second.chunks[0].wants_logits);
}

TEST(SchedulerTest, ReservesPromptAndDecodeAtAdmissionFirstComeFirstServed) {
  const Placement placement(1, 16);
  Scheduler scheduler(placement, Options(10));
  scheduler.Enqueue(Spec(1, 100, 50));  // 100 + 8 reserved: 7 pages
  scheduler.Enqueue(Spec(2, 60, 1));    // 4 pages: does not fit beside it
  scheduler.Enqueue(Spec(3, 10, 1));    // would fit, but comes later
  EXPECT_THAT(scheduler.Admit(), testing::ElementsAre(1));
  EXPECT_EQ(scheduler.pages_used(0), 7);
  EXPECT_EQ(scheduler.queued(), 2);
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.pages_used(0), 0);
  EXPECT_THAT(scheduler.Admit(), testing::ElementsAre(2, 3));
}

TEST(SchedulerTest, RefusesWhatCanNeverFitWithTheNumbers) {
  const Placement placement(2, 16);
  const Scheduler scheduler(placement, Options(10));
  EXPECT_TRUE(scheduler.CheckFits(320, 1).ok());
  const absl::Status status = scheduler.CheckFits(400, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("400"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("10"));
}

TEST(SchedulerTest, StarvedDecodesAreNamedAndGoOnWhenPagesComeFree) {
  const Placement placement(1, 16);
  SchedulerOptions options = Options(2);
  options.decode_reserve_tokens = 0;
  Scheduler scheduler(placement, options);
  scheduler.Enqueue(Spec(1, 16, 50));
  scheduler.Enqueue(Spec(2, 16, 50));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.AppendToken(2, 5);
  EXPECT_TRUE(scheduler.Plan().empty());
  EXPECT_THAT(scheduler.starved(), testing::ElementsAre(1, 2));
  scheduler.Remove(2);
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
  EXPECT_TRUE(scheduler.starved().empty());
}

TEST(SchedulerTest, PagesThatComeFreeGoToStarvedSequencesBeforeTheQueue) {
  const Placement placement(1, 16);
  SchedulerOptions options = Options(3);
  options.decode_reserve_tokens = 0;
  Scheduler scheduler(placement, options);
  scheduler.Enqueue(Spec(1, 16, 50));
  scheduler.Enqueue(Spec(2, 32, 1));
  EXPECT_EQ(scheduler.Admit().size(), 2u);
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.Enqueue(Spec(3, 32, 1));  // would take both pages that sequence 2 gives back
  EXPECT_TRUE(scheduler.Plan().decodes.empty());
  EXPECT_THAT(scheduler.starved(), testing::ElementsAre(1));
  scheduler.Remove(2);
  EXPECT_TRUE(scheduler.Admit().empty());
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
  EXPECT_TRUE(scheduler.Admit().empty());  // one page is left, it needs two
  scheduler.Remove(1);
  EXPECT_THAT(scheduler.Admit(), testing::ElementsAre(3));
}

TEST(SchedulerTest, PausedSequencesAreNotDecoded) {
  const Placement placement(1, 16);
  Scheduler scheduler(placement, Options(10));
  scheduler.Enqueue(Spec(1, 5, 9));
  scheduler.Admit();
  scheduler.Commit(scheduler.Plan());
  scheduler.AppendToken(1, 5);
  scheduler.SetPaused(1, true);
  EXPECT_TRUE(scheduler.Plan().empty());
  scheduler.SetPaused(1, false);
  EXPECT_EQ(scheduler.Plan().decodes.size(), 1u);
}

TEST(SchedulerTest, OneStepPacksManyPromptsUpToItsBounds) {
  const Placement placement(2, 16);
  SchedulerOptions options = Options(1000);
  options.chunk_tokens = 1000;
  options.max_running = 200;
  Scheduler scheduler(placement, options);
  for (SequenceId id = 1; id <= 100; ++id) scheduler.Enqueue(Spec(id, 5, 1));
  scheduler.Admit();
  const StepPlan plan = scheduler.Plan();
  EXPECT_EQ(plan.chunks.size(), static_cast<size_t>(kMaxChunksPerStep));
  scheduler.Commit(plan);
  EXPECT_EQ(scheduler.Plan().chunks.size(), 100u - kMaxChunksPerStep);
}

// Random arrivals, ends and pauses: no page has two owners, all come back, every prompt is
// finished.
TEST(SchedulerTest, RandomLivesLeakNothing) {
  std::mt19937 rng(5);
  const Placement placement(3, 32);
  SchedulerOptions options = Options(40);
  options.max_running = 6;
  Scheduler scheduler(placement, options);
  std::set<SequenceId> alive;
  SequenceId next = 1;
  int64_t finished = 0;
  for (int i = 0; i < 20000; ++i) {
    if (alive.size() < 10) {
      const int64_t prompt = 1 + static_cast<int64_t>(rng() % 300);
      const int64_t max_new = static_cast<int64_t>(rng() % 40);
      if (scheduler.CheckFits(prompt, max_new).ok()) {
        scheduler.Enqueue(Spec(next, prompt, max_new));
        alive.insert(next++);
      }
    }
    scheduler.Admit();
    const StepPlan plan = scheduler.Plan();
    std::vector<std::set<PageId>> owned(3);
    auto check = [&](const BlockTable& table) {
      for (size_t r = 0; r < 3; ++r) {
        for (PageId page : table[r]) {
          EXPECT_LT(page, 40u);
          EXPECT_TRUE(owned[r].insert(page).second) << "two owners";
        }
      }
    };
    for (const PrefillChunk& chunk : plan.chunks) check(chunk.pages);
    for (const DecodeToken& decode : plan.decodes) check(decode.pages);
    if (plan.empty() && !scheduler.starved().empty()) {
      alive.erase(scheduler.starved().back());
      scheduler.Remove(scheduler.starved().back());
      continue;
    }
    scheduler.Commit(plan);
    auto on_token = [&](SequenceId id) {
      if (rng() % 20 == 0) {
        scheduler.Remove(id);
        alive.erase(id);
        ++finished;
      } else {
        scheduler.AppendToken(id, 1);
      }
    };
    for (const DecodeToken& decode : plan.decodes) on_token(decode.sequence);
    for (const PrefillChunk& chunk : plan.chunks) {
      if (chunk.wants_logits) on_token(chunk.sequence);
    }
    if (rng() % 50 == 0 && !alive.empty()) {
      scheduler.Remove(*alive.begin());
      alive.erase(alive.begin());
    }
    // Prompts that ask for no token end with their prefill.
    for (auto it = alive.begin(); it != alive.end();) {
      bool done = false;
      for (const PrefillChunk& chunk : plan.chunks) {
        done |= chunk.sequence == *it && !chunk.wants_logits && chunk.tokens.size() < 100;
      }
      if (done && rng() % 2 == 0) {
        scheduler.Remove(*it);
        it = alive.erase(it);
      } else {
        ++it;
      }
    }
  }
  EXPECT_GT(finished, 100);
  for (SequenceId id : alive) scheduler.Remove(id);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(scheduler.pages_used(r), 0);
}

}  // namespace
}  // namespace ringfill
