#include "engine/worker/result_codec.h"

#include <cstring>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 60;

StepPlan Plan() {
  StepPlan plan;
  plan.chunks.resize(3);
  plan.chunks[0].spans = {{0, 30}};
  plan.chunks[0].score = true;
  plan.chunks[1].spans = {{5, 9}};
  plan.chunks[1].wants_logits = true;
  plan.chunks[2].spans = {{0, 9}};
  plan.chunks[2].wants_logits = true;
  plan.decodes.resize(2);
  return plan;
}

// Fits Plan(): chunk 2 was stopped, three rows of logits.
RankStepResult Result(uint32_t seed) {
  std::mt19937 random(seed);
  RankStepResult result;
  result.prefill_busy_s = 0.25;
  result.prefill_wait_s = 1e-9;
  result.decode_busy_s = 3;
  result.decode_wait_s = 4;
  result.ring_bytes = int64_t{1} << 40;
  result.transfer_s = 0.125;
  result.round_seconds = {0.5, 0.25, static_cast<double>(random())};
  result.work = {.product_rows = 77,
                 .attention_pairs = static_cast<int64_t>(random()),
                 .merged_states = 78,
                 .empty_states = 79};
  result.comm.rounds = {1, 2, 3, 4};
  result.comm.gather_bytes = 80;
  result.comm.AddGatherTime(0.0002);
  result.comm.AddGatherTime(5);
  result.memory = {81, 82, 83, 84};
  result.stopped_mask = 4;
  result.faults = {{.entry = 1, .layer = 2, .round = -1}};
  result.vocab_begin = 20;
  result.vocab_end = 40;
  for (int i = 0; i < 60; ++i) result.logits.push_back(static_cast<float>(random() % 100) / 7);
  result.logits[3] = std::numeric_limits<float>::quiet_NaN();
  result.logits[4] = -std::numeric_limits<float>::infinity();
  result.scores = {{.chunk = 0, .position = 29, .logprob = -1.5f}};
  TraceSpan span;
  span.label = {OpKind::kAttend, 3, 1, RingStrategy::kPassQ, 1000};
  span.lane = TraceLane::kComm;
  span.begin = Instant(std::chrono::nanoseconds(123456789));
  span.end = Instant(std::chrono::nanoseconds(123456999));
  result.trace = {span, span};
  return result;
}

TEST(ResultCodecTest, RoundTrips) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const RankStepResult result = Result(seed);
    const std::string bytes = EncodeResult(result);
    const auto got = DecodeResult(bytes);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(EncodeResult(*got), bytes);
    EXPECT_TRUE(got->status.ok());
    EXPECT_EQ(got->prefill_busy_s, 0.25);
    EXPECT_EQ(got->prefill_wait_s, 1e-9);
    EXPECT_EQ(got->decode_busy_s, 3);
    EXPECT_EQ(got->decode_wait_s, 4);
    EXPECT_EQ(got->ring_bytes, result.ring_bytes);
    EXPECT_EQ(got->transfer_s, 0.125);
    EXPECT_EQ(got->round_seconds, result.round_seconds);
    EXPECT_EQ(got->work.product_rows, 77);
    EXPECT_EQ(got->work.attention_pairs, result.work.attention_pairs);
    EXPECT_EQ(got->work.merged_states, 78);
    EXPECT_EQ(got->work.empty_states, 79);
    EXPECT_EQ(got->comm.rounds, result.comm.rounds);
    EXPECT_EQ(got->comm.gather_bytes, 80);
    EXPECT_EQ(got->comm.gather_times, result.comm.gather_times);
    EXPECT_EQ(got->comm.gather_s, result.comm.gather_s);
    EXPECT_EQ(got->memory, result.memory);
    EXPECT_EQ(got->stopped_mask, 4u);
    ASSERT_EQ(got->faults.size(), 1u);
    EXPECT_EQ(got->faults[0].entry, 1);
    EXPECT_EQ(got->faults[0].layer, 2);
    EXPECT_EQ(got->faults[0].round, -1);
    EXPECT_EQ(got->vocab_begin, 20);
    EXPECT_EQ(got->vocab_end, 40);
    ASSERT_EQ(got->logits.size(), 60u);
    EXPECT_EQ(std::memcmp(got->logits.data(), result.logits.data(), 60 * sizeof(float)), 0);
    ASSERT_EQ(got->scores.size(), 1u);
    EXPECT_EQ(got->scores[0].chunk, 0);
    EXPECT_EQ(got->scores[0].position, 29);
    EXPECT_EQ(got->scores[0].logprob, -1.5f);
    ASSERT_EQ(got->trace.size(), 2u);
    EXPECT_EQ(got->trace[1].label.kind, OpKind::kAttend);
    EXPECT_EQ(got->trace[1].label.layer, 3);
    EXPECT_EQ(got->trace[1].label.round, 1);
    EXPECT_EQ(got->trace[1].label.strategy, RingStrategy::kPassQ);
    EXPECT_EQ(got->trace[1].label.bytes, 1000);
    EXPECT_EQ(got->trace[1].lane, TraceLane::kComm);
    EXPECT_EQ(got->trace[1].begin, result.trace[1].begin);
    EXPECT_EQ(got->trace[1].end, result.trace[1].end);
    EXPECT_TRUE(CheckResult(*got, Plan(), kVocab).ok());
  }
}

TEST(ResultCodecTest, StatusesKeepCodeAndMessage) {
  RankStepResult result;
  result.status = absl::DeadlineExceededError("rank 2 waited too long");
  auto got = DecodeResult(EncodeResult(result));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->status, result.status);
  result.status = absl::InternalError(std::string(100000, 'x'));
  got = DecodeResult(EncodeResult(result));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->status.message().size(), kMaxResultMessageBytes);
}

TEST(ResultCodecTest, EveryTruncationIsDataLoss) {
  const std::string bytes = EncodeResult(Result(1));
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ASSERT_EQ(DecodeResult(bytes.substr(0, cut)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(DecodeResult(bytes + 'x').status().code(), absl::StatusCode::kDataLoss);
}

TEST(ResultCodecTest, FlippedBitsDecodeToThemselvesOrNotAtAll) {
  const std::string bytes = EncodeResult(Result(2));
  int decoded = 0;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto result = DecodeResult(flipped);
    if (!result.ok()) continue;
    ++decoded;
    ASSERT_EQ(EncodeResult(*result), flipped) << "bit " << bit;
  }
  EXPECT_GT(decoded, 1000);
}

TEST(ResultCodecTest, ErrorsNameTheField) {
  std::string bytes = EncodeResult(Result(1));
  bytes[4] = 3;
  EXPECT_EQ(DecodeResult(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(DecodeResult(bytes).status().message()), HasSubstr("version"));
  bytes = EncodeResult(Result(1));
  bytes[8] = 99;
  EXPECT_THAT(std::string(DecodeResult(bytes).status().message()), HasSubstr("status is 99"));
}

TEST(ResultCodecTest, ResultsThatDoNotFitThePlanAreRefusedByName) {
  const struct {
    void (*spoil)(RankStepResult&);
    const char* message;
  } kCases[] = {
      {[](RankStepResult& r) {
         r.faults[0].entry = static_cast<int>(Plan().chunks.size() + Plan().decodes.size());
       },
       "fault.entry"},
      {[](RankStepResult& r) { r.faults[0].entry = -1; }, "fault.entry"},
      {[](RankStepResult& r) { r.scores[0].chunk = 3; }, "score.chunk"},
      {[](RankStepResult& r) { r.scores[0].chunk = 1; }, "score.position"},
      {[](RankStepResult& r) { r.scores[0].position = 30; }, "score.position"},
      {[](RankStepResult& r) { r.stopped_mask = 8; }, "stopped_mask"},
      {[](RankStepResult& r) { r.stopped_mask = 0; }, "logits"},
      {[](RankStepResult& r) { r.logits.pop_back(); }, "logits"},
      {[](RankStepResult& r) { r.vocab_end = 61; }, "vocab"},
      {[](RankStepResult& r) { r.vocab_begin = 41; }, "vocab"},
      {[](RankStepResult& r) { r.vocab_begin = -1; }, "vocab"},
  };
  for (const auto& c : kCases) {
    RankStepResult result = Result(1);
    c.spoil(result);
    const absl::Status status = CheckResult(result, Plan(), kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  RankStepResult failed;
  failed.status = absl::AbortedError("x");
  EXPECT_TRUE(CheckResult(failed, Plan(), kVocab).ok());
}

}  // namespace
}  // namespace ringfill
