// The leader's loop over a ring that only remembers: thousands of random steps with arrivals, ends,
// pauses, lost ranks and newcomers.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/layout/slot_map.h"
#include "engine/schedule/rule_chooser.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/engine/schedule/fake_cache.h"

namespace ringfill {
namespace {

struct LoopOptions {
  SchedulerOptions scheduler;
  int ranks = 4;
  int max_ranks = 6;
  int sequences = 150;
  int64_t max_prompt = 700;
  int64_t max_new = 40;
  bool failures = true;
  uint32_t seed = 1;
};

class Loop {
 public:
  explicit Loop(const LoopOptions& options)
      : options_(options),
        rng_(options.seed),
        cache_(options.ranks, options.scheduler.pages_per_rank, options.scheduler.page_tokens),
        scheduler_(HealthySlotMap(options.ranks), options.ranks, options.scheduler, chooser_) {}

  void Run() {
    int idle = 0;
    while ((next_id_ <= static_cast<SequenceId>(options_.sequences) || !living_.empty()) &&
           !testing::Test::HasFailure()) {
      Arrive();
      Disturb();
      scheduler_.Admit();
      const StepPlan plan = scheduler_.Plan();
      ASSERT_LE(plan.chunks.size(), static_cast<size_t>(kMaxChunksPerStep));
      if (plan.empty()) {
        ASSERT_LT(++idle, 200) << "nothing goes on";
        EndStarved();
        continue;
      }
      idle = 0;
      Step(plan);
    }
    for (int r = 0; r < scheduler_.ranks(); ++r) EXPECT_EQ(scheduler_.pages_used(r), 0);
  }

  int finished() const { return finished_; }
  int regroups() const { return regroups_; }
  int adopted() const { return adopted_; }
  int unfit() const { return unfit_; }
  int requeued() const { return requeued_; }
  int64_t recomputed() const { return scheduler_.recomputed_tokens(); }

 private:
  struct Living {
    std::vector<TokenId> prompt;
    int64_t to_generate = 0;
    bool paused = false;
    int64_t scored = 0;
    bool score = false;
  };

  uint32_t Random(uint32_t below) { return rng_() % below; }

  void Arrive() {
    if (living_.size() >= 12 || next_id_ > static_cast<SequenceId>(options_.sequences)) return;
    if (Random(3) != 0) return;
    SequenceSpec spec;
    spec.id = next_id_;
    const auto prompt_tokens =
        1 + static_cast<int64_t>(
                Random(static_cast<uint32_t>(Random(2) == 0 ? 40 : options_.max_prompt)));
    // Few different beginnings, so that sequences can start from each other's pages.
    const SequenceId parent = living_.empty() ? 0 : RandomLiving();
    if (parent != 0 && Random(2) == 0 && scheduler_.PromptMissing(parent) >= 0) {
      const std::vector<TokenId>& from = living_.at(parent).prompt;
      const size_t shared = 1 + Random(static_cast<uint32_t>(from.size()));
      spec.prompt.assign(from.begin(), from.begin() + static_cast<int64_t>(shared));
      Adopt(parent, spec);
    }
    while (static_cast<int64_t>(spec.prompt.size()) < prompt_tokens) {
      spec.prompt.push_back(static_cast<TokenId>(Random(1000)));
    }
    spec.max_new_tokens = Random(5) == 0 ? 0 : 1 + Random(static_cast<uint32_t>(options_.max_new));
    spec.score = Random(6) == 0;
    if (!scheduler_.CheckFits(static_cast<int64_t>(spec.prompt.size()), spec.max_new_tokens).ok()) {
      return;
    }
    ++next_id_;
    living_[spec.id] = {
        .prompt = spec.prompt, .to_generate = spec.max_new_tokens, .score = spec.score};
    cache_.Know(spec.id, spec.prompt);
    scheduler_.Enqueue(std::move(spec));
  }

  // Takes the parent's pages along, with holes cut into what they hold.
  void Adopt(SequenceId parent, SequenceSpec& spec) {
    if (options_.scheduler.layout == Layout::kContiguous ||
        options_.scheduler.layout == Layout::kZigzag) {
      return;  // other lengths, other homes
    }
    SpanSet valid;
    for (const Span& span : scheduler_.ValidSpans(parent)) valid.Add(span);
    valid = valid.Within({0, static_cast<int64_t>(spec.prompt.size())});
    for (uint32_t hole = Random(3); hole > 0 && !spec.prompt.empty(); --hole) {
      const int64_t at = Random(static_cast<uint32_t>(spec.prompt.size()));
      valid.Remove({at, at + 1 + Random(100)});
    }
    spec.valid = valid.spans();
    spec.pages = scheduler_.SharePages(parent);
    ++adopted_;
  }

  SequenceId RandomLiving() {
    auto it = living_.begin();
    std::advance(it, Random(static_cast<uint32_t>(living_.size())));
    return it->first;
  }

  void Disturb() {
    if (living_.empty()) return;
    if (Random(60) == 0) End(RandomLiving());
    if (living_.empty()) return;
    if (Random(10) == 0) {
      const SequenceId id = RandomLiving();
      Living& living = living_.at(id);
      living.paused = !living.paused;
      scheduler_.SetPaused(id, living.paused);
    }
    // Nobody stays paused for ever.
    for (auto& [id, living] : living_) {
      if (!living.paused || Random(8) != 0) continue;
      living.paused = false;
      scheduler_.SetPaused(id, false);
    }
    if (options_.failures && Random(40) == 0) Regroup(false);
  }

  void End(SequenceId id) {
    scheduler_.Remove(id);
    cache_.Forget(id);
    living_.erase(id);
  }

  void EndStarved() {
    if (scheduler_.starved().empty()) return;
    for (const auto& [id, living] : living_) {
      if (living.paused) return;
    }
    End(scheduler_.starved().back());
  }

  void Step(const StepPlan& plan) {
    if (options_.failures && Random(25) == 0) {
      cache_.ExecuteTorn(plan, rng_());
      scheduler_.Abandon(plan);
      Regroup(true);
      return;
    }
    cache_.Execute(plan);
    scheduler_.Commit(plan);
    for (const PrefillChunk& chunk : plan.chunks) {
      CountScores(chunk);
      if (chunk.wants_logits) {
        OnToken(chunk.sequence);
      } else if (living_.at(chunk.sequence).to_generate == 0 &&
                 scheduler_.PromptMissing(chunk.sequence) == 0) {
        Finish(chunk.sequence);
      }
    }
    for (const DecodeToken& decode : plan.decodes) OnToken(decode.sequence);
  }

  // Every position of the prompt but the last is scored once, in order.
  void CountScores(const PrefillChunk& chunk) {
    if (!chunk.score) {
      EXPECT_TRUE(chunk.targets.empty());
      return;
    }
    Living& living = living_.at(chunk.sequence);
    size_t target = 0;
    for (const Span& span : chunk.spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        EXPECT_EQ(p, living.scored++);
        const auto next = static_cast<size_t>(p) + 1;
        if (next == living.prompt.size()) continue;
        ASSERT_LT(target, chunk.targets.size());
        EXPECT_EQ(chunk.targets[target++], living.prompt[next]);
      }
    }
    EXPECT_EQ(target, chunk.targets.size());
  }

  void OnToken(SequenceId id) {
    Living& living = living_.at(id);
    EXPECT_EQ(scheduler_.PromptMissing(id), 0);
    EXPECT_FALSE(living.score && living.scored < static_cast<int64_t>(living.prompt.size()));
    if (--living.to_generate == 0) return Finish(id);
    const auto token = static_cast<TokenId>(Random(1000));
    cache_.Append(id, token);
    scheduler_.AppendToken(id, token);
  }

  void Finish(SequenceId id) {
    ++finished_;
    End(id);
  }

  void Regroup(bool after_failure) {
    std::vector<int> from(static_cast<size_t>(scheduler_.ranks()));
    for (size_t r = 0; r < from.size(); ++r) from[r] = static_cast<int>(r);
    if (after_failure && Random(4) != 0 && from.size() > 1) {
      from.erase(from.begin() + Random(static_cast<uint32_t>(from.size())));
    }
    if (static_cast<int>(from.size()) < options_.max_ranks && Random(2) == 0) from.push_back(-1);
    if (Random(4) == 0) std::shuffle(from.begin(), from.end(), rng_);
    cache_.Regroup(from);
    const Regrouped result = scheduler_.Regroup(from, RedealSlots(scheduler_.slot_map(), from));
    ++regroups_;
    requeued_ += static_cast<int>(result.requeued.size());
    for (const SequenceId id : result.requeued) EXPECT_EQ(scheduler_.PromptMissing(id), -1) << id;
    for (const SequenceId id : result.unfit) {
      End(id);
      ++unfit_;
    }
  }

  const LoopOptions options_;
  std::mt19937 rng_;
  const RuleChooser chooser_;
  FakeCache cache_;
  Scheduler scheduler_;
  std::map<SequenceId, Living> living_;
  SequenceId next_id_ = 1;
  int finished_ = 0;
  int regroups_ = 0;
  int adopted_ = 0;
  int unfit_ = 0;
  int requeued_ = 0;
};

LoopOptions Options(uint32_t seed) {
  LoopOptions options;
  options.scheduler.stripe_tokens = 32;
  options.scheduler.page_tokens = 16;
  options.scheduler.pages_per_rank = 60;
  options.scheduler.chunk_tokens = 256;
  options.scheduler.decode_reserve_tokens = 8;
  options.scheduler.max_running = 8;
  options.scheduler.list_freed = true;
  options.seed = seed;
  return options;
}

TEST(EngineLoopTest, EverybodyFinishesOnAHealthyRing) {
  LoopOptions options = Options(1);
  options.failures = false;
  Loop loop(options);
  loop.Run();
  EXPECT_GT(loop.finished(), options.sequences / 2);
  EXPECT_GT(loop.adopted(), 20);
  EXPECT_EQ(loop.recomputed(), 0);
}

TEST(EngineLoopTest, RanksDieAndJoin) {
  int finished = 0, requeued = 0;
  int64_t recomputed = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Loop loop(Options(seed));
    loop.Run();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(loop.regroups(), 10);
    finished += loop.finished();
    requeued += loop.requeued();
    recomputed += loop.recomputed();
  }
  EXPECT_GT(finished, 500);
  EXPECT_GT(recomputed, 1000);
  EXPECT_GT(requeued, 10);
}

TEST(EngineLoopTest, StrictPlans) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    LoopOptions options = Options(seed);
    options.scheduler.strict = true;
    Loop loop(options);
    loop.Run();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(loop.finished(), 50);
  }
}

TEST(EngineLoopTest, OtherLayouts) {
  for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kTokenStripes}) {
    SCOPED_TRACE(LayoutName(layout).data());
    LoopOptions options = Options(3);
    options.scheduler.layout = layout;
    Loop loop(options);
    loop.Run();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(loop.finished(), 50);
  }
}

TEST(EngineLoopTest, TightPool) {
  LoopOptions options = Options(4);
  options.scheduler.pages_per_rank = 14;
  options.scheduler.decode_reserve_tokens = 0;
  options.max_prompt = 300;
  Loop loop(options);
  loop.Run();
  EXPECT_GT(loop.finished(), 25);
}

TEST(EngineLoopTest, SmallerRingsHoldLess) {
  int unfit = 0, requeued = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    LoopOptions options = Options(seed);
    options.scheduler.pages_per_rank = 20;
    Loop loop(options);
    loop.Run();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(loop.finished(), 25);
    unfit += loop.unfit();
    requeued += loop.requeued();
  }
  EXPECT_GT(unfit, 0);
  EXPECT_GT(requeued, 0);
}

// One rank of N dies: at most 1/N of the tokens and one chunk are computed again.
TEST(EngineLoopTest, ADeathCostsItsShareAndAChunk) {
  const RuleChooser chooser;
  for (int ranks = 2; ranks <= 6; ++ranks) {
    for (int dies = 0; dies < ranks; dies += ranks - 1) {
      for (const int steps : {1, 5, 13, 24}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << dies << " dies at " << steps);
        SchedulerOptions options = Options(1).scheduler;
        options.pages_per_rank = 1000;
        Scheduler scheduler(HealthySlotMap(ranks), ranks, options, chooser);
        FakeCache cache(ranks, options.pages_per_rank, options.page_tokens);
        SequenceSpec spec;
        spec.id = 1;
        spec.prompt.assign(ranks * 1024, 7);
        spec.max_new_tokens = 100;
        const auto prompt_tokens = static_cast<int64_t>(spec.prompt.size());
        cache.Know(1, spec.prompt);
        scheduler.Enqueue(std::move(spec));
        scheduler.Admit();
        int64_t computed = 0, generated = 0;
        for (int step = 0; generated < 20; ++step) {
          const StepPlan plan = scheduler.Plan();
          ASSERT_FALSE(plan.empty());
          if (step == steps) {
            cache.ExecuteTorn(plan, 1);
            scheduler.Abandon(plan);
            std::vector<int> from;
            for (int r = 0; r < ranks; ++r) {
              if (r != dies) from.push_back(r);
            }
            cache.Regroup(from);
            const Regrouped result =
                scheduler.Regroup(from, RedealSlots(scheduler.slot_map(), from));
            EXPECT_TRUE(result.unfit.empty());
            continue;
          }
          cache.Execute(plan);
          ASSERT_FALSE(HasFailure());
          scheduler.Commit(plan);
          bool token = !plan.decodes.empty();
          for (const PrefillChunk& chunk : plan.chunks) {
            computed += static_cast<int64_t>(chunk.tokens.size());
            token |= chunk.wants_logits;
          }
          if (!token) continue;
          ++generated;
          cache.Append(1, 3);
          scheduler.AppendToken(1, 3);
        }
        EXPECT_LE(scheduler.recomputed_tokens(),
                  prompt_tokens / ranks + options.chunk_tokens + options.stripe_tokens);
        EXPECT_LE(computed, prompt_tokens + scheduler.recomputed_tokens());
        EXPECT_GT(scheduler.recomputed_tokens(), 0);
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
