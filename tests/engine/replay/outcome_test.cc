#include "engine/replay/outcome.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 21;

// Chunk 0 is scored, chunk 1 and 2 want logits, and there is a decode.
StepPlan MakePlan() {
  StepPlan plan;
  plan.step = 5;
  plan.chunks.resize(3);
  for (size_t c = 0; c < 3; ++c) {
    plan.chunks[c].sequence = 10 + c;
    plan.chunks[c].wants_logits = c > 0;
  }
  plan.chunks[0].spans = {{0, 3}};
  plan.chunks[0].score = true;
  plan.chunks[0].targets = {1, 2};
  plan.chunks[1].spans = {{5, 9}};
  plan.chunks[2].spans = {{7, 8}};
  plan.decodes.resize(1);
  plan.decodes[0].sequence = 13;
  plan.decodes[0].position = 40;
  return plan;
}

// Two ranks with a slice each; row i, token v has i + v / 100.
std::vector<RankStepResult> MakeResults(int rows, uint64_t stopped = 0) {
  std::vector<RankStepResult> results(2);
  const int64_t ends[] = {0, 8, kVocab};
  for (size_t r = 0; r < 2; ++r) {
    results[r].stopped_mask = stopped;
    results[r].vocab_begin = ends[r];
    results[r].vocab_end = ends[r + 1];
    for (int row = 0; row < rows; ++row) {
      for (int64_t v = ends[r]; v < ends[r + 1]; ++v) {
        results[r].logits.push_back(static_cast<float>(row) + 0.01f * static_cast<float>(v));
      }
    }
  }
  results[0].scores = {{0, 1, -2.0f}};
  results[1].scores = {{0, 0, -1.0f}};
  return results;
}

OutcomeRecord Make(const std::vector<RankStepResult>& results, uint64_t ignored = 0) {
  return OutcomeOf(StepRows::Of(MakePlan()), results, kVocab, ignored);
}

struct Compared {
  std::optional<std::string> what;
  Agreement agreement;
};
Compared Compare(const OutcomeRecord& a, const OutcomeRecord& b, bool strict,
                 double tolerance = 1e-3) {
  Compared out;
  out.what = CompareOutcomes(MakePlan(), a, b, {strict, tolerance}, out.agreement);
  return out;
}

TEST(OutcomeTest, RowsAreWholeAndScoresInOrder) {
  const OutcomeRecord outcome = Make(MakeResults(3));
  EXPECT_EQ(outcome.step, 5u);
  ASSERT_EQ(outcome.rows.size(), 3u);
  EXPECT_EQ(outcome.rows[2].best, kVocab - 1);
  EXPECT_FLOAT_EQ(outcome.rows[2].best_logit, 2.2f);
  EXPECT_FLOAT_EQ(outcome.rows[1].samples[7], 1.18f);  // token 7 * 21 / 8
  ASSERT_EQ(outcome.scores.size(), 2u);
  EXPECT_EQ(outcome.scores[0].position, 0);
  EXPECT_EQ(outcome.scores[1].logprob, -2.0f);
}

TEST(OutcomeTest, EqualBitsAreEqual) {
  const OutcomeRecord outcome = Make(MakeResults(3));
  const Compared same = Compare(outcome, outcome, true);
  EXPECT_EQ(same.what, std::nullopt);
  EXPECT_EQ(same.agreement.equal_rows, 3);
  EXPECT_EQ(same.agreement.equal_scores, 2);
  EXPECT_EQ(same.agreement.largest, 0);
}

// A bit anywhere in a row, wherever samples are taken.
TEST(OutcomeTest, EveryLogitCountsInStrictNumerics) {
  const OutcomeRecord was = Make(MakeResults(3));
  for (size_t i = 0; i < MakeResults(3)[1].logits.size(); ++i) {
    auto results = MakeResults(3);
    results[1].logits[i] = std::nextafter(results[1].logits[i], 100.0f);
    const Compared compared = Compare(was, Make(results), true);
    ASSERT_TRUE(compared.what.has_value()) << i;
    EXPECT_THAT(*compared.what, HasSubstr("the bits differ"));
    EXPECT_EQ(compared.agreement.equal_rows, 2);
    EXPECT_EQ(Compare(was, Make(results), false).what, std::nullopt);
  }
}

TEST(OutcomeTest, FastNumericsHaveATolerance) {
  const OutcomeRecord was = Make(MakeResults(3));
  auto results = MakeResults(3);
  for (float& logit : results[0].logits) logit += 0.01f;
  const Compared compared = Compare(was, Make(results), false);
  ASSERT_TRUE(compared.what.has_value());
  EXPECT_THAT(*compared.what, HasSubstr("sequence 11, position 8"));
  EXPECT_NEAR(compared.agreement.largest, 0.01, 1e-4);
  EXPECT_EQ(Compare(was, Make(results), false, 0.02).what, std::nullopt);
}

TEST(OutcomeTest, ScoresAreCompared) {
  const OutcomeRecord was = Make(MakeResults(3));
  auto results = MakeResults(3);
  results[0].scores[0].logprob = -2.5f;
  const Compared compared = Compare(was, Make(results), false);
  ASSERT_TRUE(compared.what.has_value());
  EXPECT_THAT(*compared.what, HasSubstr("the score of sequence 10, position 1"));
  results[0].scores.clear();
  EXPECT_THAT(*Compare(was, Make(results), false).what, HasSubstr("2 scores, the replay 1"));
}

TEST(OutcomeTest, ValuesThatAreNotFiniteDiffer) {
  const OutcomeRecord was = Make(MakeResults(3));
  auto results = MakeResults(3);
  for (float& logit : results[0].logits) logit = std::numeric_limits<float>::quiet_NaN();
  const OutcomeRecord broken = Make(results);
  EXPECT_TRUE(Compare(was, broken, false, 1e9).what.has_value());
  EXPECT_EQ(Compare(broken, broken, true).what, std::nullopt);
}

// A replay need not stop a chunk where the recorded run did, or at all.
TEST(OutcomeTest, StoppedChunksHaveNoResults) {
  constexpr uint64_t kFirstWanted = 2;
  const OutcomeRecord was = Make(MakeResults(2, kFirstWanted));
  ASSERT_EQ(was.rows.size(), 2u);
  const OutcomeRecord stopped_too = Make(MakeResults(2, kFirstWanted), kFirstWanted);
  EXPECT_EQ(Compare(was, stopped_too, true).what, std::nullopt);
  auto results = MakeResults(3);
  const OutcomeRecord ran_on = Make(results, kFirstWanted);
  ASSERT_EQ(ran_on.rows.size(), 2u);
  EXPECT_FLOAT_EQ(ran_on.rows[0].best_logit, 1.2f);  // the second row of three
  const Compared other = Compare(was, Make(MakeResults(2, 4)), true);
  ASSERT_TRUE(other.what.has_value());
  EXPECT_THAT(*other.what, HasSubstr("stopped"));
}

TEST(OutcomeTest, ALogThatDoesNotFitItsPlanDiffers) {
  const OutcomeRecord whole = Make(MakeResults(3));
  OutcomeRecord less = whole;
  less.rows.pop_back();
  EXPECT_THAT(*Compare(less, whole, false).what, HasSubstr("2 rows of logits, the replay 3"));
  OutcomeRecord elsewhere = whole;
  elsewhere.scores[0].chunk = 77;
  EXPECT_THAT(*Compare(elsewhere, whole, false).what, HasSubstr("chunk 77"));
}

}  // namespace
}  // namespace ringfill
