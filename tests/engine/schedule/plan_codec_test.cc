#include "engine/schedule/plan_codec.h"

#include <random>

#include "engine/layout/placement.h"
#include "engine/schedule/plan_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/schedule/random_plan.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectSame(const StepPlan& a, const StepPlan& b) {
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.ranks, b.ranks);
  EXPECT_EQ(a.placements, b.placements);
  ASSERT_EQ(a.chunks.size(), b.chunks.size());
  for (size_t i = 0; i < a.chunks.size(); ++i) {
    const PrefillChunk &x = a.chunks[i], &y = b.chunks[i];
    EXPECT_EQ(x.sequence, y.sequence);
    EXPECT_EQ(x.spans, y.spans);
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.placement, y.placement);
    EXPECT_EQ(x.pages, y.pages);
    EXPECT_EQ(x.mode, y.mode);
    EXPECT_EQ(x.strategy, y.strategy);
    EXPECT_EQ(x.wants_logits, y.wants_logits);
    EXPECT_EQ(x.score, y.score);
    EXPECT_EQ(x.targets, y.targets);
    EXPECT_EQ(x.document_starts, y.document_starts);
  }
  ASSERT_EQ(a.decodes.size(), b.decodes.size());
  for (size_t i = 0; i < a.decodes.size(); ++i) {
    const DecodeToken &x = a.decodes[i], &y = b.decodes[i];
    EXPECT_EQ(x.sequence, y.sequence);
    EXPECT_EQ(x.position, y.position);
    EXPECT_EQ(x.token, y.token);
    EXPECT_EQ(x.placement, y.placement);
    EXPECT_EQ(x.pages, y.pages);
    EXPECT_EQ(x.document_start, y.document_start);
  }
  EXPECT_EQ(a.freed, b.freed);
}

// Writes every place that the plan's step would: none twice, none out of range.
void Execute(const StepPlan& plan) {
  const auto page_tokens = static_cast<size_t>(kPlanLimits.page_tokens);
  const std::vector<bool> empty(static_cast<size_t>(kPlanLimits.pages_per_rank) * page_tokens);
  std::vector<std::vector<bool>> written(static_cast<size_t>(kPlanLimits.ranks), empty);
  const auto write = [&](const BlockTable& pages, int index, Span span) {
    const Placement placement(plan.ranks, plan.placements.at(static_cast<size_t>(index)));
    for (int64_t p = span.begin; p < span.end; ++p) {
      const auto rank = static_cast<size_t>(placement.Home(p));
      const auto local = static_cast<size_t>(placement.LocalToken(p));
      const PageId page = pages.at(rank).at(local / page_tokens);
      auto place = written.at(rank).at(page * page_tokens + local % page_tokens);
      EXPECT_FALSE(place) << "written twice";
      place = true;
    }
  };
  for (const PrefillChunk& chunk : plan.chunks) {
    for (const Span& span : chunk.spans) write(chunk.pages, chunk.placement, span);
  }
  for (const DecodeToken& decode : plan.decodes) {
    write(decode.pages, decode.placement, {decode.position, decode.position + 1});
  }
}

// How garbled plans were met.
struct Met {
  int undecoded = 0, refused = 0, executed = 0;
};

// What decodes encodes to itself, so it differs from what was garbled; what passes the check can be
// executed.
void Use(std::string_view bytes, Met& met) {
  const absl::StatusOr<StepPlan> plan = DecodePlan(bytes);
  if (!plan.ok()) {
    EXPECT_FALSE(plan.status().message().empty());
    ++met.undecoded;
    return;
  }
  EXPECT_EQ(EncodePlan(*plan), bytes);
  const absl::Status valid = CheckPlan(*plan, kPlanLimits);
  if (!valid.ok()) {
    EXPECT_THAT(Message(valid), testing::StartsWith("plan: "));
    ++met.refused;
    return;
  }
  ++met.executed;
  EXPECT_NO_THROW(Execute(*plan));
}

TEST(PlanCodecTest, RandomPlansRoundTrip) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const StepPlan plan = RandomPlan(random);
    ASSERT_TRUE(CheckPlan(plan, kPlanLimits).ok()) << CheckPlan(plan, kPlanLimits);
    const std::string bytes = EncodePlan(plan);
    const absl::StatusOr<StepPlan> decoded = DecodePlan(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ExpectSame(plan, *decoded);
    EXPECT_EQ(EncodePlan(*decoded), bytes);
  }
}

TEST(PlanCodecTest, EmptyPlan) {
  StepPlan plan;
  const absl::StatusOr<StepPlan> decoded = DecodePlan(EncodePlan(plan));
  ASSERT_TRUE(decoded.ok());
  ExpectSame(plan, *decoded);
}

// The bytes of a small plan, written down: other programs read them.
TEST(PlanCodecTest, LittleEndianLayout) {
  StepPlan plan;
  plan.epoch = 2;
  plan.step = 0x0102;
  plan.ranks = 1;
  plan.placements = {{64, {0}}};
  plan.decodes = {{7, 3, 258, 0, {{9}}, 2}};
  const std::string expected(
      "RFPL\2\0\0\0"
      "\2\0\0\0\0\0\0\0\2\1\0\0\0\0\0\0\1\0\0\0"
      "\1\0\0\0\x40\0\0\0\1\0\0\0\0\0\0\0"
      "\0\0\0\0"
      "\1\0\0\0\7\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\2\1\0\0\0\0\0\0\1\0\0\0\1\0\0\0\x09\0\0\0"
      "\2\0\0\0\0\0\0\0"
      "\0\0\0\0",
      8 + 20 + 16 + 4 + 40 + 8 + 4);
  EXPECT_EQ(EncodePlan(plan), expected);
}

TEST(PlanCodecTest, EveryTruncationIsDataLoss) {
  std::mt19937 random(2);
  for (int i = 0; i < 8; ++i) {
    const std::string bytes = EncodePlan(RandomPlan(random));
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      const auto plan = DecodePlan(std::string_view(bytes).substr(0, cut));
      ASSERT_EQ(plan.status().code(), absl::StatusCode::kDataLoss) << cut;
    }
    EXPECT_EQ(DecodePlan(bytes + '\0').status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(PlanCodecTest, FlippedBitsNeverTouchAnythingOutOfRange) {
  std::mt19937 random(3);
  Met met;
  for (int i = 0; i < 6; ++i) {
    const std::string bytes = EncodePlan(RandomPlan(random));
    for (size_t bit = random() % 3; bit < 8 * bytes.size(); bit += 3) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      Use(flipped, met);
    }
  }
  // Counts and enums are the decoder's to refuse, pages and positions the check's; a token or a
  // sequence may well be another.
  EXPECT_GT(met.undecoded, 1000);
  EXPECT_GT(met.refused, 1000);
  EXPECT_GT(met.executed, 1000);
}

TEST(PlanCodecTest, OverwrittenWordsNeverTouchAnythingOutOfRange) {
  std::mt19937 random(4);
  Met met;
  constexpr uint32_t kWords[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 65536, 4000};
  for (int i = 0; i < 12; ++i) {
    const std::string bytes = EncodePlan(RandomPlan(random));
    for (size_t at = 0; at + 4 <= bytes.size(); ++at) {
      std::string garbled = bytes;
      std::memcpy(garbled.data() + at, &kWords[random() % std::size(kWords)], 4);
      Use(garbled, met);
    }
  }
  EXPECT_GT(met.undecoded, 1000);
  EXPECT_GT(met.refused, 1000);
  EXPECT_GT(met.executed, 100);
}

TEST(PlanCodecTest, ErrorsNameTheField) {
  StepPlan plan;
  plan.placements = {{64, {0}}};
  std::string bytes = EncodePlan(plan);
  bytes[0] = 'x';
  EXPECT_THAT(Message(DecodePlan(bytes).status()), HasSubstr("magic"));
  bytes = EncodePlan(plan);
  bytes[4] = 9;
  EXPECT_EQ(DecodePlan(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(DecodePlan(bytes).status()), HasSubstr("version of the plan is 9"));
  bytes = EncodePlan(plan);
  bytes[28 + 4 + 4] = 100;  // the slot map's count
  EXPECT_THAT(Message(DecodePlan(bytes).status()),
              HasSubstr("placement.slot_map has 100 elements"));
}

// Four billion elements in a few bytes must not be allocated.
TEST(PlanCodecTest, CountsAreBoundedByTheBytesThatAreLeft) {
  StepPlan plan;
  std::string bytes = EncodePlan(plan);
  for (size_t at = 28; at + 4 <= bytes.size(); at += 4) {
    std::string huge = bytes;
    const uint32_t count = 0xfffffff0;
    std::memcpy(huge.data() + at, &count, 4);
    EXPECT_EQ(DecodePlan(huge).status().code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace ringfill
