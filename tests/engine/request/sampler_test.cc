#include "engine/request/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace ringfill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SamplingOptions Random(float temperature, uint64_t seed = 1) {
  SamplingOptions options;
  options.temperature = temperature;
  options.seed = seed;
  return options;
}

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

std::vector<float> NormalLogits(size_t vocab, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// How often each id comes in `draws` draws.
std::map<TokenId, int> Count(const std::vector<float>& logits, const SamplingOptions& options,
                             int draws, const std::vector<TokenId>& banned = {}) {
  std::map<TokenId, int> counts;
  for (int step = 0; step < draws; ++step) {
    const auto sampled = Sample(logits, options, step, -1, banned);
    if (!sampled.ok()) {
      ADD_FAILURE() << sampled.status();
      return counts;
    }
    ++counts[sampled->id];
  }
  return counts;
}

std::set<TokenId> Support(const std::map<TokenId, int>& counts) {
  std::set<TokenId> ids;
  for (const auto& [id, count] : counts) ids.insert(id);
  return ids;
}

// The definition, in double, over a full sort: probability of each id after all cuts.
std::map<TokenId, double> Reference(const std::vector<float>& logits,
                                    const SamplingOptions& options,
                                    const std::set<TokenId>& banned = {}) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    if (!banned.contains(id)) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < ids.size()) {
    ids.resize(options.top_k);
  }
  const double max = logits[ids[0]];
  std::vector<double> weights;
  for (const TokenId id : ids) {
    const double weight = std::exp((logits[id] - max) / options.temperature);
    if (weight < options.min_p) break;
    weights.push_back(weight);
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  size_t n = 0;
  while (n < weights.size() && kept < options.top_p * all) kept += weights[n++];
  std::map<TokenId, double> out;
  for (size_t i = 0; i < n; ++i) out[ids[i]] = weights[i] / kept;
  return out;
}

// Chi-square over ids that are expected at least 5 times, the rest pooled. The bound is 6 standard
// deviations above the mean of the statistic; seeds are fixed, so a pass stays a pass.
void ExpectDistribution(const std::map<TokenId, int>& counts,
                        const std::map<TokenId, double>& expected, int draws) {
  double chi = 0, pooled_expected = 0, pooled_count = 0;
  int degrees = -1;
  for (const auto& [id, count] : counts) {
    ASSERT_TRUE(expected.contains(id)) << "id " << id << " was cut and came " << count << " times";
  }
  for (const auto& [id, p] : expected) {
    const double want = p * draws;
    const auto it = counts.find(id);
    const double got = it == counts.end() ? 0 : it->second;
    if (want < 5) {
      pooled_expected += want;
      pooled_count += got;
      continue;
    }
    chi += (got - want) * (got - want) / want;
    ++degrees;
  }
  if (pooled_expected >= 5) {
    chi += (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
    ++degrees;
  }
  ASSERT_GE(degrees, 1);
  EXPECT_LT(chi, degrees + 6 * std::sqrt(2.0 * degrees)) << degrees << " degrees of freedom";
}

TEST(SamplerTest, GreedyTakesTheFirstOfTheLargest) {
  std::vector<float> logits(1000, -2.0f);
  logits[700] = logits[701] = logits[999] = 5.0f;
  EXPECT_EQ(Sample(logits, {}, 0, -1, {})->id, 700);
  EXPECT_EQ(Sample(logits, {}, 0, -1, std::vector<TokenId>{700})->id, 701);
  EXPECT_EQ(Sample(logits, {}, 0, -1, std::vector<TokenId>{701, 999, 700})->id, 0);
  EXPECT_EQ(Sample(std::vector<float>(300, -1e30f), {}, 0, -1, {})->id, 0);
  EXPECT_EQ(Sample(std::vector<float>{-0.0f, 0.0f}, {}, 0, -1, {})->id, 0);
  EXPECT_EQ(Sample(std::vector<float>{3.0f}, {}, 0, -1, {})->id, 0);
}

TEST(SamplerTest, GreedyAgreesWithMaxElement) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::vector<float> logits = NormalLogits(1 + seed * 13, 3, seed);
    const auto max = std::max_element(logits.begin(), logits.end());
    ASSERT_EQ(Sample(logits, {}, 0, -1, {})->id, max - logits.begin());
  }
}

TEST(SamplerTest, BannedIdsAreNeverPicked) {
  const std::vector<float> logits = {1, 9, 3, 8, 2};
  const std::vector<TokenId> banned = {3, 1, 3, 77, -1};
  EXPECT_EQ(Sample(logits, {}, 0, -1, banned)->id, 2);
  SamplingOptions options = Random(2);
  EXPECT_EQ(Support(Count(logits, options, 2000, banned)), (std::set<TokenId>{0, 2, 4}));
  options.top_k = 2;
  EXPECT_EQ(Support(Count(logits, options, 2000, banned)), (std::set<TokenId>{2, 4}));
  options.top_k = 0;
  options.min_p = 0.5f;  // of the best that is left: e^-0.5 of it is above, e^-1 below
  EXPECT_EQ(Support(Count(logits, options, 2000, banned)), (std::set<TokenId>{2, 4}));
  options.min_p = 0;
  options.top_p = 0.5f;
  EXPECT_EQ(Support(Count(logits, options, 2000, banned)), (std::set<TokenId>{2}));
  const auto none_left = Sample(logits, options, 0, -1, std::vector<TokenId>{0, 1, 2, 3, 4});
  EXPECT_EQ(none_left.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SamplerTest, NonFiniteLogitsAreDataLoss) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    for (const size_t place : {0u, 255u, 256u, 511u, 599u}) {
      std::vector<float> logits(600, 1.0f);
      logits[place] = value;
      for (const float temperature : {0.0f, 1.0f}) {
        const auto sampled = Sample(logits, Random(temperature), 0, -1, {});
        ASSERT_EQ(sampled.status().code(), absl::StatusCode::kDataLoss) << place << " " << value;
        EXPECT_THAT(std::string(sampled.status().message()),
                    HasSubstr("logit " + std::to_string(place) + " of 600"));
      }
    }
  }
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = NormalLogits(600, 2, 5);
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    SCOPED_TRACE(temperature);
    const SamplingOptions options = Random(temperature, 42);
    ExpectDistribution(Count(logits, options, kDraws), Reference(logits, options), kDraws);
  }
}

TEST(SamplerTest, DrawsFollowTheDistributionAfterEveryMixOfCuts) {
  constexpr int kDraws = 3000;
  const std::vector<float> logits = NormalLogits(300, 2, 6);
  const std::vector<TokenId> banned = {
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()), 3};
  for (const int top_k : {0, 2, 40, 300}) {
    for (const float top_p : {1.0f, 0.97f, 0.6f}) {
      for (const float min_p : {0.0f, 0.02f, 0.3f}) {
        SamplingOptions options = Random(1.3f, 1000 + top_k);
        options.top_k = top_k;
        options.top_p = top_p;
        options.min_p = min_p;
        SCOPED_TRACE(testing::Message()
                     << "top_k " << top_k << " top_p " << top_p << " min_p " << min_p);
        ExpectDistribution(Count(logits, options, kDraws, banned),
                           Reference(logits, options, {banned.begin(), banned.end()}), kDraws);
      }
    }
  }
}

TEST(SamplerTest, CutsKeepExactlyTheirSets) {
  const std::vector<float> logits = LogitsOf({0.1, 0.4, 0.05, 0.25, 0.2});
  const struct {
    int top_k;
    float top_p, min_p;
    std::set<TokenId> kept;
  } cases[] = {
      {0, 1, 0, {0, 1, 2, 3, 4}},
      {5, 1, 0, {0, 1, 2, 3, 4}},
      {1, 1, 0, {1}},
      {3, 1, 0, {1, 3, 4}},
      {4, 1, 0, {0, 1, 3, 4}},
      {0, 0.39f, 0, {1}},
      {0, 0.41f, 0, {1, 3}},
      {0, 0.64f, 0, {1, 3}},
      {0, 0.66f, 0, {1, 3, 4}},
      {0, 0.94f, 0, {0, 1, 3, 4}},
      {0, 0.96f, 0, {0, 1, 2, 3, 4}},
      {0, 1e-30f, 0, {1}},
      {0, 1, 0.1f, {0, 1, 2, 3, 4}},
      {0, 1, 0.13f, {0, 1, 3, 4}},
      {0, 1, 0.26f, {1, 3, 4}},
      {0, 1, 0.6f, {1, 3}},
      {0, 1, 1.0f, {1}},
      // top-p counts the mass that top-k and min-p leave: 0.4, 0.25, 0.2 of 0.85.
      {3, 0.75f, 0, {1, 3}},
      {0, 0.75f, 0.3f, {1, 3}},
      {3, 0.78f, 0, {1, 3, 4}},
      {0, 0.78f, 0.3f, {1, 3, 4}},
      {2, 0.61f, 0, {1}},
      {2, 0.62f, 0, {1, 3}},
  };
  for (const auto& c : cases) {
    SamplingOptions options = Random(1);
    options.top_k = c.top_k;
    options.top_p = c.top_p;
    options.min_p = c.min_p;
    EXPECT_EQ(Support(Count(logits, options, 2000)), c.kept)
        << "top_k " << c.top_k << " top_p " << c.top_p << " min_p " << c.min_p;
  }
}

TEST(SamplerTest, MinPIsTakenAfterTemperature) {
  const std::vector<float> logits = LogitsOf({0.8, 0.2});
  SamplingOptions options = Random(1);
  options.min_p = 0.3f;  // ratio 0.25 at temperature 1, 0.5 at 2
  EXPECT_EQ(Support(Count(logits, options, 500)), (std::set<TokenId>{0}));
  options.temperature = 2;
  EXPECT_EQ(Support(Count(logits, options, 500)), (std::set<TokenId>{0, 1}));
}

TEST(SamplerTest, AmongEqualsTheLowerIdsAreKept) {
  std::vector<float> logits(1000, 0.0f);
  for (const TokenId id : {17, 300, 301, 900}) logits[id] = 2.0f;
  SamplingOptions options = Random(1);
  options.top_k = 3;
  EXPECT_EQ(Support(Count(logits, options, 500)), (std::set<TokenId>{17, 300, 301}));
  options.top_k = 6;
  EXPECT_EQ(Support(Count(logits, options, 2000)), (std::set<TokenId>{0, 1, 17, 300, 301, 900}));
  options.top_k = 0;
  options.top_p = 0.003f;  // one of the four large ones is e^2 / (996 + 4 e^2) = 0.0072
  EXPECT_EQ(Support(Count(logits, options, 500)), (std::set<TokenId>{17}));
  options.top_p = 0.02f;
  EXPECT_EQ(Support(Count(logits, options, 500)), (std::set<TokenId>{17, 300, 301}));
}

// Flat distributions: the nucleus is the lowest ids, and its end lies deep in one bucket.
TEST(SamplerTest, NucleiOfEveryLength) {
  const size_t vocab = 3000;
  for (const double part : {0.001, 0.01, 0.2, 0.9, 0.999}) {
    SamplingOptions options = Random(1, 3);
    options.top_p = static_cast<float>(part);
    const auto counts = Count(std::vector<float>(vocab, 1.0f), options, 200);
    const TokenId limit = static_cast<TokenId>(std::ceil(part * vocab) + 1);
    EXPECT_LE(counts.rbegin()->first, limit) << part;
    EXPECT_GE(counts.rbegin()->first, limit * 0.9 - 1) << part;
  }
}

TEST(SamplerTest, ExtremeTemperaturesAndLogits) {
  const std::vector<float> logits = {1.0f, 1.0001f, -3e38f, 0.5f};
  EXPECT_EQ(Support(Count(logits, Random(std::numeric_limits<float>::denorm_min()), 50)),
            (std::set<TokenId>{1}));
  EXPECT_EQ(Support(Count(logits, Random(1e-30f), 50)), (std::set<TokenId>{1}));
  EXPECT_EQ(Support(Count(logits, Random(100), 500)), (std::set<TokenId>{0, 1, 3}));
  EXPECT_EQ(Support(Count({3e38f, -3e38f}, Random(1), 50)), (std::set<TokenId>{0}));
}

TEST(SamplerTest, SeedAndStepDetermineTheDraw) {
  const std::vector<float> logits = NormalLogits(5000, 1, 9);
  std::vector<TokenId> first, again, other;
  for (int step = 0; step < 64; ++step) {
    first.push_back(Sample(logits, Random(1, 7), step, -1, {})->id);
    other.push_back(Sample(logits, Random(1, 8), step, -1, {})->id);
  }
  for (int step = 63; step >= 0; --step) {
    again.insert(again.begin(), Sample(logits, Random(1, 7), step, 5, {})->id);
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  EXPECT_GT(std::set<TokenId>(first.begin(), first.end()).size(), 32u);
}

TEST(SamplerTest, UniformDrawIsUniformOverStepsAndSeeds) {
  constexpr int kBins = 64, kDraws = 64000;
  for (const bool over_steps : {true, false}) {
    std::vector<int> bins(kBins);
    for (int i = 0; i < kDraws; ++i) {
      const double u = over_steps ? UniformDraw(0, i) : UniformDraw(i, 0);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++bins[static_cast<int>(u * kBins)];
    }
    double chi = 0;
    for (const int n : bins) chi += (n - 1000.0) * (n - 1000.0) / 1000;
    EXPECT_LT(chi, 63 + 5 * std::sqrt(126.0)) << over_steps;
  }
}

// Seeds must not give each other's draws some steps later.
TEST(SamplerTest, DrawsOfNeighbouringSeedsAreUnrelated) {
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int64_t step = 0; step < 100; ++step) seen.insert(UniformDraw(seed, step));
  }
  EXPECT_EQ(seen.size(), 10000u);
}

TEST(SamplerTest, LogprobsAgreeWithDoubleArithmetic) {
  for (const auto& [vocab, spread] :
       std::vector<std::pair<size_t, float>>{{1, 1}, {7, 3}, {255, 10}, {1000, 0.1f}, {50000, 4}}) {
    const std::vector<float> logits = NormalLogits(vocab, spread, 20);
    double sum = 0;
    const double max = *std::max_element(logits.begin(), logits.end());
    for (const float logit : logits) sum += std::exp(logit - max);
    const double log_sum = max + std::log(sum);
    SamplingOptions options = Random(3, 5);
    options.top_k = 20;
    options.top_p = 0.9f;
    for (int step = 0; step < 20; ++step) {
      const auto sampled = Sample(logits, options, step, kMaxLogprobs, std::vector<TokenId>{0, 2});
      if (vocab == 1) {
        EXPECT_FALSE(sampled.ok());
        continue;
      }
      ASSERT_TRUE(sampled.ok()) << sampled.status();
      EXPECT_NEAR(sampled->logprob, logits[sampled->id] - log_sum, 2e-6 * (1 + std::abs(log_sum)));
      ASSERT_EQ(sampled->top.size(), std::min<size_t>(kMaxLogprobs, vocab));
      std::vector<TokenId> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
      for (size_t i = 0; i < sampled->top.size(); ++i) {
        EXPECT_EQ(sampled->top[i].id, order[i]);
        EXPECT_NEAR(sampled->top[i].logprob, logits[order[i]] - log_sum,
                    2e-6 * (1 + std::abs(log_sum)));
      }
    }
  }
}

TEST(SamplerTest, LogprobsAreOfTheUnmodifiedDistribution) {
  const std::vector<float> logits = LogitsOf({0.5, 0.25, 0.125, 0.125});
  SamplingOptions options = Random(0.01f);
  options.top_k = 1;
  const auto sampled = Sample(logits, options, 0, 4, std::vector<TokenId>{0});
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->id, 1);
  EXPECT_NEAR(sampled->logprob, std::log(0.25), 1e-5);
  std::vector<TokenId> ids;
  for (const TokenLogprob& entry : sampled->top) ids.push_back(entry.id);
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3));
  EXPECT_NEAR(sampled->top[0].logprob, std::log(0.5), 1e-5);

  // A banned token far above the rest: nothing overflows on either side.
  const auto far = Sample(std::vector<float>{200, 0, 1}, {}, 0, 1, std::vector<TokenId>{0});
  EXPECT_EQ(far->id, 2);
  EXPECT_NEAR(far->logprob, -199, 1e-4);
  EXPECT_NEAR(far->top[0].logprob, 0, 1e-6);

  EXPECT_TRUE(Sample(logits, {}, 0, 0, {})->top.empty());
  EXPECT_NEAR(Sample(logits, {}, 0, 0, {})->logprob, std::log(0.5), 1e-5);
  EXPECT_TRUE(Sample(logits, {}, 0, -1, {})->top.empty());
}

}  // namespace
}  // namespace ringfill
