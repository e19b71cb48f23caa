#include "engine/compute/cuda/kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/compute/products/elementwise.h"
#include "engine/request/sampler.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/device_array.h"

namespace ringfill::gpu {
namespace {

std::vector<float> Logits(size_t vocab, uint32_t seed, float scale = 3.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(vocab);
  for (float& x : out) x = scale * normal(rng);
  return out;
}

// Rows of one vocabulary, sampled together on the device.
class Batch {
 public:
  void Add(const std::vector<float>& logits, SampleRow row,
           const std::vector<LogitAdjustment>& adjustments = {}) {
    vocab_ = logits.size();
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    row.first_adjustment = static_cast<int32_t>(adjustments_.size());
    row.adjustments = static_cast<int32_t>(adjustments.size());
    adjustments_.insert(adjustments_.end(), adjustments.begin(), adjustments.end());
    rows_.push_back(row);
  }

  std::vector<SampledToken> Run() const {
    const DeviceArray<float> logits(logits_);
    const DeviceArray<SampleRow> rows(rows_);
    const DeviceArray<LogitAdjustment> adjustments(adjustments_);
    const DeviceArray<SampledToken> out(rows_.size());
    EXPECT_EQ(SampleTokens({.logits = logits.data(),
                            .rows = static_cast<int64_t>(rows_.size()),
                            .vocab = static_cast<int64_t>(vocab_),
                            .row = rows.data(),
                            .adjustments = adjustments.data(),
                            .out = out.data()},
                           nullptr),
              0);
    // The logits are as they came.
    const std::vector<float> after = logits.Read();
    EXPECT_EQ(std::memcmp(after.data(), logits_.data(), after.size() * sizeof(float)), 0);
    return out.Read();
  }

 private:
  size_t vocab_ = 0;
  std::vector<float> logits_;
  std::vector<SampleRow> rows_;
  std::vector<LogitAdjustment> adjustments_;
};

SampleRow RowOf(const SamplingOptions& options, int64_t step, int top_logprobs) {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .draw = UniformDraw(options.seed, step),
          .top_logprobs = top_logprobs};
}

void ExpectLikeCpu(const SampledToken& got, const Sampled& want, const std::string& what) {
  EXPECT_EQ(got.status, SampleStatus::kOk) << what;
  EXPECT_EQ(got.id, want.id) << what;
  const float limit = 1e-5f * (1 + std::fabs(want.logprob));
  EXPECT_NEAR(got.logprob, want.logprob, limit) << what;
  ASSERT_EQ(static_cast<size_t>(got.top), want.top.size()) << what;
  for (size_t i = 0; i < want.top.size(); ++i) {
    EXPECT_EQ(got.top_id[i], want.top[i].id) << what << " top " << i;
    EXPECT_NEAR(got.top_logprob[i], want.top[i].logprob,
                1e-5f * (1 + std::fabs(want.top[i].logprob)))
        << what << " top " << i;
  }
}

// The same options and draws through both samplers: the same tokens.
TEST(SampleTokens, PicksWhatTheCpuPicks) {
  const std::vector<SamplingOptions> all = {
      {.temperature = 0.0f},
      {.temperature = 1.0f},
      {.temperature = 0.5f, .top_k = 1},
      {.temperature = 1.0f, .top_k = 5},
      {.temperature = 1.5f, .top_k = 50, .top_p = 0.8f},
      {.temperature = 1.0f, .top_p = 0.9f},
      {.temperature = 0.7f, .top_p = 0.3f},
      {.temperature = 1.0f, .min_p = 0.1f},
      {.temperature = 2.0f, .top_k = 100, .top_p = 0.95f, .min_p = 0.01f},
      {.temperature = 1.0f, .top_p = 0.0f},
      {.temperature = 1.0f, .top_k = 1 << 30},
  };
  for (const size_t vocab :
       {size_t{1}, size_t{2}, size_t{511}, size_t{512}, size_t{513}, size_t{1031}}) {
    Batch batch;
    std::vector<Sampled> want;
    for (SamplingOptions options : all) {
      for (int64_t step = 0; step < 4; ++step) {
        options.seed = vocab;
        const std::vector<float> logits = Logits(vocab, static_cast<uint32_t>(vocab + step));
        const int top = step == 0 ? -1 : static_cast<int>(step) * 2 - 2;
        batch.Add(logits, RowOf(options, step, top));
        want.push_back(*Sample(logits, options, step, top, {}));
      }
    }
    const std::vector<SampledToken> got = batch.Run();
    for (size_t i = 0; i < want.size(); ++i) {
      ExpectLikeCpu(got[i], want[i],
                    "vocab " + std::to_string(vocab) + " case " + std::to_string(i / 4) + " step " +
                        std::to_string(i % 4));
    }
  }
}

// Ids beyond 2^16, where an id's own digits all matter.
TEST(SampleTokens, LargeVocabulary) {
  const std::vector<float> logits = Logits(140007, 3, 1.0f);
  Batch batch;
  std::vector<Sampled> want;
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 3.0f, .seed = 4},
                                         SamplingOptions{.temperature = 3.0f, .top_k = 3000},
                                         SamplingOptions{.temperature = 1.0f, .top_p = 0.5f}}) {
    for (const int64_t step : {1, 2}) {
      batch.Add(logits, RowOf(options, step, 64));
      want.push_back(*Sample(logits, options, step, 64, {}));
    }
  }
  const std::vector<SampledToken> got = batch.Run();
  for (size_t i = 0; i < want.size(); ++i) ExpectLikeCpu(got[i], want[i], std::to_string(i));
}

// Among equals the lower id comes first, in every cut.
TEST(SampleTokens, TiesGoToTheLowerId) {
  std::vector<float> logits(600, 1.0f);
  for (size_t i = 5; i < 600; i += 7) logits[i] = 2.0f;
  logits[3] = -0.0f;
  logits[4] = 0.0f;
  Batch batch;
  std::vector<Sampled> want;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 0.0f}, SamplingOptions{.temperature = 1.0f, .top_k = 3},
        SamplingOptions{.temperature = 1.0f, .top_k = 90, .top_p = 0.9f},
        SamplingOptions{.temperature = 1.0f, .top_p = 0.21f}}) {
    for (int64_t step = 0; step < 6; ++step) {
      batch.Add(logits, RowOf(options, step, 5));
      want.push_back(*Sample(logits, options, step, 5, {}));
    }
  }
  const std::vector<SampledToken> got = batch.Run();
  for (size_t i = 0; i < want.size(); ++i) ExpectLikeCpu(got[i], want[i], std::to_string(i));
}

TEST(SampleTokens, BannedIdsAreNeverPickedButHaveLogprobs) {
  const std::vector<float> logits = Logits(700, 6);
  const auto best =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<TokenId> banned = {best, 11, 650};
  std::vector<LogitAdjustment> adjustments;
  for (const TokenId id : banned) adjustments.push_back({id, LogitAdjustment::kBanned, 0.0f});
  Batch batch;
  std::vector<Sampled> want;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 0.0f}, SamplingOptions{.temperature = 2.0f},
        SamplingOptions{.temperature = 1.0f, .top_k = 4, .min_p = 0.2f},
        SamplingOptions{.temperature = 2.0f, .top_p = 0.6f}}) {
    for (int64_t step = 0; step < 4; ++step) {
      batch.Add(logits, RowOf(options, step, 2), adjustments);
      want.push_back(*Sample(logits, options, step, 2, banned));
    }
  }
  const std::vector<SampledToken> got = batch.Run();
  for (size_t i = 0; i < want.size(); ++i) {
    ExpectLikeCpu(got[i], want[i], std::to_string(i));
    EXPECT_EQ(got[i].top_id[0], best);
  }
}

TEST(SampleTokens, PenaltiesChangeThePickAlone) {
  std::vector<float> logits = {2.0f, 1.9f, -1.0f, -1.05f, 0.5f};
  struct Case {
    float repetition, frequency, presence;
    std::vector<LogitAdjustment> adjustments;
    int32_t id;
  };
  const std::vector<Case> cases = {
      {1.0f, 0.0f, 0.0f, {{0, 1, 0}}, 0},
      {2.0f, 0.0f, 0.0f, {{0, 1, 0}}, 1},
      {2.0f, 0.0f, 0.0f, {{0, 0, 0}}, 0},  // seen 0 times
      {1.0f, 0.04f, 0.0f, {{0, 2, 0}}, 0},
      {1.0f, 0.04f, 0.0f, {{0, 3, 0}}, 1},
      {1.0f, 0.0f, 0.2f, {{0, 1, 0}}, 1},
      {1.0f, 0.0f, 0.2f, {{0, 1, 0}, {1, 1, 0}}, 0},
      {1.0f, 0.0f, 9.0f, {{0, 1, 0}, {1, 7, 0}, {4, 1, 0}}, 2},
      // A negative logit is multiplied: -1 becomes -2, below -1.05.
      {2.0f, 0.0f, 9.0f, {{0, -1, 0}, {1, -1, 0}, {4, -1, 0}, {2, 0, 0}}, 2},
      {2.0f, 0.0f, 0.0f, {{0, -1, 0}, {1, -1, 0}, {4, -1, 0}, {2, 1, 0}}, 3},
  };
  Batch batch;
  for (const Case& c : cases) {
    batch.Add(logits,
              {.top_logprobs = 0,
               .repetition = c.repetition,
               .frequency = c.frequency,
               .presence = c.presence},
              c.adjustments);
  }
  const std::vector<SampledToken> got = batch.Run();
  const float log_sum_exp =
      ringfill::LogSumExpOf(logits.data(), static_cast<int64_t>(logits.size())).log_sum_exp;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(got[i].id, cases[i].id) << i;
    EXPECT_NEAR(got[i].logprob, logits[static_cast<size_t>(cases[i].id)] - log_sum_exp, 1e-5f) << i;
  }
}

TEST(SampleTokens, SaysWhatItCannotSample) {
  std::vector<float> logits = Logits(600, 7);
  Batch all_banned;
  all_banned.Add({1.0f, 2.0f}, {.temperature = 1.0f},
                 {{0, LogitAdjustment::kBanned, 0}, {1, LogitAdjustment::kBanned, 0}});
  EXPECT_EQ(all_banned.Run()[0].status, SampleStatus::kAllBanned);
  Batch batch;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> changed = logits;
    changed[577] = bad;
    changed[599] = bad;
    batch.Add(changed, {.temperature = 1.0f, .top_logprobs = 3});
  }
  for (const SampledToken& got : batch.Run()) {
    EXPECT_EQ(got.status, SampleStatus::kNotFinite);
    EXPECT_EQ(got.id, 577);
  }
  EXPECT_NE(SampleTokens({.logits = nullptr,
                          .rows = 1,
                          .vocab = kMaxSampledVocab + 1,
                          .row = nullptr,
                          .adjustments = nullptr,
                          .out = nullptr},
                         nullptr),
            0);
}

TEST(ScoreBlock, GathersOverTheVocabulary) {
  constexpr int64_t kRows = 3, kVocab = 1300;
  std::vector<std::vector<float>> rows;
  for (uint32_t r = 0; r < kRows; ++r) rows.push_back(Logits(kVocab, 8 + r, 5.0f));
  const std::vector<int32_t> target = {0, 700, kVocab - 1};
  for (const int64_t block : {int64_t{100}, int64_t{257}, kVocab}) {
    const DeviceArray<ScoreState> state(kRows);
    const DeviceArray<int32_t> device_target(target);
    for (int64_t begin = 0; begin < kVocab; begin += block) {
      const int64_t count = std::min(block, kVocab - begin);
      std::vector<float> part;
      for (const std::vector<float>& row : rows) {
        part.insert(part.end(), row.begin() + begin, row.begin() + begin + count);
      }
      const DeviceArray<float> logits(part);
      ASSERT_EQ(ScoreBlock({.logits = logits.data(),
                            .rows = kRows,
                            .begin = begin,
                            .count = count,
                            .target = device_target.data(),
                            .state = state.data()},
                           nullptr),
                0);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    const DeviceArray<float> out(kRows);
    ASSERT_EQ(FinishScores(state.data(), kRows, out.data(), nullptr), 0);
    const std::vector<float> got = out.Read();
    for (size_t r = 0; r < kRows; ++r) {
      const float want = rows[r][static_cast<size_t>(target[r])] -
                         ringfill::LogSumExpOf(rows[r].data(), kVocab).log_sum_exp;
      EXPECT_NEAR(got[r], want, 1e-5f * (1 + std::fabs(want))) << "block " << block;
    }
  }
}

}  // namespace
}  // namespace ringfill::gpu
