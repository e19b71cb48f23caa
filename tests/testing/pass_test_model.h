// A tiny model, one long text and what the plain reference says about it, made once a process.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/load_model.h"
#include "tests/testing/reference_model.h"
#include "tests/testing/ring_harness.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {

struct PassTestModel {
  explicit PassTestModel(const TinyModelOptions& options, size_t tokens)
      : model(LoadModelOrDie(WriteTinyModel(options))),
        text(RandomTokens(tokens, options.vocab, 99)),
        logits(ReferenceLogits(*model, text)) {}

  std::vector<TokenId> Prefix(int64_t tokens) const {
    return {text.begin(), text.begin() + tokens};
  }

  std::shared_ptr<const Model> model;
  std::vector<TokenId> text;
  std::vector<std::vector<float>> logits;  // [tokens][vocab]
};

inline const PassTestModel& TinyText() {
  static const auto* const text = [] {
    TinyModelOptions options;
    options.layers = 3;
    return new PassTestModel(options, 400);
  }();
  return *text;
}

inline void ExpectLogitsNear(const std::vector<float>& got, const std::vector<float>& expected,
                             double tolerance = 1e-3) {
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(double{got[i]} - double{expected[i]});
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LT(worst, tolerance);
}

inline void ExpectEqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// Asks for the score of every token of the chunk.
inline void ScoreAll(const std::vector<TokenId>& text, PrefillChunk& chunk) {
  chunk.score = true;
  for (const Span& span : chunk.spans) {
    for (int64_t p = span.begin; p < span.end; ++p) {
      if (p + 1 < static_cast<int64_t>(text.size())) {
        chunk.targets.push_back(text[static_cast<size_t>(p + 1)]);
      }
    }
  }
}

// Every position of chunk `chunk` was scored by exactly one rank, as the reference does.
inline void ExpectScores(const PassTestModel& text, const StepPlan& plan, int chunk,
                         const std::vector<RankStepResult>& results, double tolerance = 1e-3) {
  const PrefillChunk& c = plan.chunks[static_cast<size_t>(chunk)];
  std::vector<int64_t> scored;
  for (const RankStepResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    for (const ScoredToken& score : result.scores) {
      if (score.chunk != chunk) continue;
      scored.push_back(score.position);
      const auto p = static_cast<size_t>(score.position);
      EXPECT_NEAR(score.logprob, ReferenceLogprob(text.logits[p], text.text[p + 1]), tolerance)
          << "position " << p;
    }
  }
  std::sort(scored.begin(), scored.end());
  std::vector<int64_t> expected;
  for (const Span& span : c.spans) {
    for (int64_t p = span.begin; p < span.end; ++p) expected.push_back(p);
  }
  expected.resize(c.targets.size());
  EXPECT_EQ(scored, expected);
}

// Rank `odd` is so many steps ahead of the others (negative: behind): no rank takes what it gets.
inline void ExpectAnotherStepIsRefused(RingHarness& ring, const StepPlan& plan, int odd,
                                       int64_t ahead) {
  std::vector<StepPlan> plans(static_cast<size_t>(ring.ranks()), plan);
  plans[static_cast<size_t>(odd)].step += static_cast<uint64_t>(ahead);
  for (const RankStepResult& result : ring.RunEach(plans)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << result.status;
  }
}

}  // namespace ringfill
