#include "engine/compute/attention/softmax_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

constexpr int kDim = 8;
constexpr float kInf = std::numeric_limits<float>::infinity();

struct State {
  State() { ClearSoftmax({&max, &sum, acc.data()}, 1, kDim); }
  SoftmaxRow row() { return {&max, &sum, acc.data()}; }

  float max, sum;
  std::vector<float> acc = std::vector<float>(kDim, 7.0f);
};

struct Sample {
  double score;  // natural units
  std::vector<double> value;
};

std::vector<Sample> RandomSamples(int n, double spread, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<Sample> out(n);
  for (Sample& s : out) {
    s.score = spread * normal(rng);
    for (int d = 0; d < kDim; ++d) s.value.push_back(normal(rng));
  }
  return out;
}

// The state of a set of samples, straight from the definition in the header.
State StateOf(const std::vector<Sample>& samples) {
  State out;
  if (samples.empty()) return out;
  double max = -INFINITY;
  for (const Sample& s : samples) max = std::max(max, s.score / std::log(2.0));
  max = static_cast<float>(max);
  double sum = 0.0;
  std::vector<double> acc(kDim);
  for (const Sample& s : samples) {
    const double p = std::exp2(s.score / std::log(2.0) - max);
    sum += p;
    for (int d = 0; d < kDim; ++d) acc[d] += p * s.value[d];
  }
  out.max = static_cast<float>(max);
  out.sum = static_cast<float>(sum);
  for (int d = 0; d < kDim; ++d) out.acc[d] = static_cast<float>(acc[d]);
  return out;
}

struct Softmax {
  double lse;  // natural logarithm
  std::vector<double> out;
};

Softmax DirectSoftmax(const std::vector<Sample>& samples) {
  double max = -INFINITY;
  for (const Sample& s : samples) max = std::max(max, s.score);
  double sum = 0.0;
  std::vector<double> out(kDim);
  for (const Sample& s : samples) {
    const double p = std::exp(s.score - max);
    sum += p;
    for (int d = 0; d < kDim; ++d) out[d] += p * s.value[d];
  }
  for (double& x : out) x /= sum;
  return {max + std::log(sum), out};
}

void ExpectIs(State& state, const Softmax& want, double tolerance) {
  float out[kDim];
  NormalizeSoftmax(state.row(), out, kDim);
  EXPECT_NEAR(LogSumExp(state.row()), want.lse, tolerance * (1.0 + std::abs(want.lse)));
  for (int d = 0; d < kDim; ++d) EXPECT_NEAR(out[d], want.out[d], tolerance);
}

std::vector<Sample> Slice(const std::vector<Sample>& samples, size_t from, size_t to) {
  return {samples.begin() + from, samples.begin() + to};
}

TEST(SoftmaxState, EmptyIsTheStatedValue) {
  State s;
  EXPECT_EQ(s.max, -kInf);
  EXPECT_EQ(s.sum, 0.0f);
  EXPECT_EQ(s.acc, std::vector<float>(kDim, 0.0f));
  EXPECT_EQ(LogSumExp(s.row()), -kInf);
  float out[kDim];
  NormalizeSoftmax(s.row(), out, kDim);
  for (float x : out) EXPECT_EQ(x, 0.0f);
}

TEST(SoftmaxState, EmptyMergesAsIdentityOnBothSides) {
  State state = StateOf(RandomSamples(9, 3.0, 1));
  const State want = state;
  State empty;
  MergeSoftmax(empty.row(), state.row(), kDim);
  EXPECT_EQ(state.max, want.max);
  EXPECT_EQ(state.sum, want.sum);
  EXPECT_EQ(state.acc, want.acc);
  MergeSoftmax(state.row(), empty.row(), kDim);
  EXPECT_EQ(empty.max, want.max);
  EXPECT_EQ(empty.sum, want.sum);
  EXPECT_EQ(empty.acc, want.acc);
}

TEST(SoftmaxState, TwoEmptiesStayEmpty) {
  State a, b;
  MergeSoftmax(a.row(), b.row(), kDim);
  EXPECT_EQ(b.max, -kInf);
  EXPECT_EQ(b.sum, 0.0f);
  EXPECT_EQ(b.acc, std::vector<float>(kDim, 0.0f));
}

TEST(SoftmaxState, MergeIsCommutativeToTheBit) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    State a = StateOf(RandomSamples(5, 4.0, 2 * seed));
    State b = StateOf(RandomSamples(3, 4.0, 2 * seed + 1));
    State ab = b, ba = a;
    MergeSoftmax(a.row(), ab.row(), kDim);
    MergeSoftmax(b.row(), ba.row(), kDim);
    EXPECT_EQ(ab.max, ba.max);
    EXPECT_EQ(ab.sum, ba.sum);
    EXPECT_EQ(ab.acc, ba.acc);
  }
}

TEST(SoftmaxState, AnyGroupingGivesTheSoftmaxOfAll) {
  const std::vector<Sample> all = RandomSamples(60, 5.0, 11);
  const Softmax want = DirectSoftmax(all);
  for (const size_t step : {1, 7, 20, 59, 60}) {
    State forward, backward;
    for (size_t i = 0; i < all.size(); i += step) {
      State part = StateOf(Slice(all, i, std::min(all.size(), i + step)));
      MergeSoftmax(part.row(), forward.row(), kDim);
    }
    for (size_t i = all.size(); i > 0; i -= std::min(i, step)) {
      State part = StateOf(Slice(all, i - std::min(i, step), i));
      MergeSoftmax(part.row(), backward.row(), kDim);
    }
    ExpectIs(forward, want, 2e-6);
    ExpectIs(backward, want, 2e-6);
  }
}

// A merge that forgets to rescale the accumulator (or the sum) along with the maximum is right only
// while maxima are equal.
TEST(SoftmaxState, AccumulatorIsRescaledWhicheverSideHasTheLargerMaximum) {
  const Sample low{0.0, std::vector<double>(kDim, 1.0)};
  const Sample high{std::log(4.0), std::vector<double>(kDim, -1.0)};
  for (const bool low_first : {true, false}) {
    State into = StateOf({low_first ? low : high});
    State from = StateOf({low_first ? high : low});
    MergeSoftmax(from.row(), into.row(), kDim);
    EXPECT_FLOAT_EQ(into.max, 2.0f);
    EXPECT_FLOAT_EQ(into.sum, 1.25f);
    for (float x : into.acc) EXPECT_FLOAT_EQ(x, 0.25f - 1.0f);
  }
}

// The sum of a merge is no sum of exponentials of the maxima: two sets of three equal scores make
// log(6), not log(2).
TEST(SoftmaxState, CountsEveryKeyAndNotOnlyTheMaxima) {
  const Sample s{1.5, std::vector<double>(kDim, 2.0)};
  State into = StateOf({s, s, s});
  State from = StateOf({s, s, s});
  MergeSoftmax(from.row(), into.row(), kDim);
  EXPECT_NEAR(LogSumExp(into.row()), 1.5 + std::log(6.0), 1e-6);
}

// The maximum is kept in base-2 units and the answer is natural; one key shows a mixed base.
TEST(SoftmaxState, LogSumExpIsNatural) {
  for (const double score : {-40.0, -1.0, 0.0, 0.5, 13.0, 1e4}) {
    State s = StateOf({{score, std::vector<double>(kDim, 3.0)}});
    EXPECT_NEAR(LogSumExp(s.row()), score, 1e-6 * (1.0 + std::abs(score)));
  }
}

TEST(SoftmaxState, FarApartMaximaNeitherOverflowNorMakeNan) {
  State into = StateOf({{-1e4, std::vector<double>(kDim, 5.0)}});
  State from = StateOf({{1e4, std::vector<double>(kDim, -2.0)}});
  MergeSoftmax(from.row(), into.row(), kDim);
  ExpectIs(into, {1e4, std::vector<double>(kDim, -2.0)}, 1e-6);
}

// A broken key must fail the request, so it may not pass for an empty state on its way.
TEST(SoftmaxState, NanReachesTheResultThroughEveryMerge) {
  for (const float max : {-kInf, 0.0f, NAN}) {
    State bad;
    bad.max = max;
    bad.sum = NAN;
    State through;
    MergeSoftmax(bad.row(), through.row(), kDim);
    State into = StateOf(RandomSamples(4, 1.0, 3));
    MergeSoftmax(through.row(), into.row(), kDim);
    float out[kDim];
    NormalizeSoftmax(into.row(), out, kDim);
    EXPECT_TRUE(std::isnan(into.sum)) << max;
    for (float x : out) EXPECT_FALSE(std::isfinite(x)) << max;
  }
}

TEST(SoftmaxState, RowsPointsIntoTheArrays) {
  std::vector<float> max(3), sum(3), acc(3 * kDim);
  const SoftmaxRows rows{max.data(), sum.data(), acc.data()};
  const SoftmaxRow row = rows.Row(2, kDim);
  EXPECT_EQ(row.max, &max[2]);
  EXPECT_EQ(row.sum, &sum[2]);
  EXPECT_EQ(row.acc, &acc[2 * kDim]);
}

}  // namespace
}  // namespace ringfill
