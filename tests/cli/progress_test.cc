#include "cli/progress.h"

#include <algorithm>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/test_console.h"

namespace ringfill::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ProgressSample kHalf{
    .processed_tokens = 4096, .total_tokens = 8192, .tokens_per_s = 1234.4, .eta_s = 3.32};

TEST(FormatCount, GroupsThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
}

TEST(FormatNumbered, OneIsSingular) {
  EXPECT_EQ(FormatNumbered(0, "page"), "0 pages");
  EXPECT_EQ(FormatNumbered(1, "page"), "1 page");
  EXPECT_EQ(FormatNumbered(1234, "page"), "1,234 pages");
}

TEST(FormatSeconds, PicksAUnit) {
  EXPECT_EQ(FormatSeconds(0.0004), "0.4 ms");
  EXPECT_EQ(FormatSeconds(0.85), "850 ms");
  EXPECT_EQ(FormatSeconds(4.2), "4.20 s");
  EXPECT_EQ(FormatSeconds(42.04), "42.0 s");
  EXPECT_EQ(FormatSeconds(59.99), "1 min 00 s");
  EXPECT_EQ(FormatSeconds(200), "3 min 20 s");
  EXPECT_EQ(FormatSeconds(7500), "2 h 05 min");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatSeconds(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(FormatProgress, ShowsBarNumbersRateAndEta) {
  EXPECT_EQ(FormatProgress(kHalf, 120),
            "prefill [###############---------------] 4,096/8,192 tokens  50 %  1,234 tok/s  "
            "ETA 3.32 s");
}

TEST(FormatProgress, FitsAnyTerminal) {
  for (int columns = 0; columns < 150; ++columns) {
    EXPECT_LT(static_cast<int>(FormatProgress(kHalf, columns).size()), std::max(columns, 1));
  }
  EXPECT_THAT(FormatProgress(kHalf, 60), HasSubstr("50 %")) << "numbers outlive the bar";
}

TEST(FormatProgress, SurvivesOddSamples) {
  EXPECT_THAT(FormatProgress({.processed_tokens = 9, .total_tokens = 0}, 100), HasSubstr("100 %"));
  EXPECT_THAT(FormatProgress({.processed_tokens = 9, .total_tokens = 5}, 100), HasSubstr("100 %"));
}

TEST(ProgressDisplay, RedrawsInPlaceAndClears) {
  TestConsole t;
  t.console.err_is_terminal = true;
  {
    ProgressDisplay display(t.console, ProgressMode::kAuto);
    display.Show(kHalf);
    EXPECT_THAT(t.err.str(), HasSubstr("\r\x1b[Kprefill ["));
    EXPECT_THAT(t.err.str(), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(t.err.str(), EndsWith("\r\x1b[K"));
}

TEST(ProgressDisplay, IsSilentWithoutATerminal) {
  TestConsole t;
  ProgressDisplay display(t.console, ProgressMode::kAuto);
  display.Show(kHalf);
  display.Clear();
  EXPECT_EQ(t.err.str(), "");
}

TEST(ProgressDisplay, NeverMeansNever) {
  TestConsole t;
  t.console.err_is_terminal = true;
  ProgressDisplay display(t.console, ProgressMode::kNever);
  display.ShowNote("queued");
  display.Show(kHalf);
  EXPECT_EQ(t.err.str(), "");
}

TEST(ProgressDisplay, PlainLinesAtMostEveryTenPercent) {
  TestConsole t;
  ProgressDisplay display(t.console, ProgressMode::kAlways);
  for (uint64_t done = 0; done <= 1000; ++done) {
    display.Show({.processed_tokens = done, .total_tokens = 1000});
  }
  const std::string text = t.err.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, EndsWith("prefill 1,000/1,000 tokens 100 %\n"));
}

}  // namespace
}  // namespace ringfill::cli
