#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/check.h"

namespace ringfill {
namespace {

absl::Status ReturnIfError(absl::Status status, bool& went_on) {
  RF_RETURN_IF_ERROR(status);
  went_on = true;
  return absl::OkStatus();
}

TEST(StatusTest, ReturnIfErrorReturnsErrorsOnly) {
  bool went_on = false;
  EXPECT_EQ(ReturnIfError(absl::NotFoundError("gone"), went_on), absl::NotFoundError("gone"));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(ReturnIfError(absl::OkStatus(), went_on).ok());
  EXPECT_TRUE(went_on);
}

absl::StatusOr<int> Sum(absl::StatusOr<int> a, absl::StatusOr<int> b) {
  RF_ASSIGN_OR_RETURN(const int x, a);
  int y;
  RF_ASSIGN_OR_RETURN(y, b);
  return x + y;
}

TEST(StatusTest, AssignOrReturn) {
  EXPECT_EQ(*Sum(2, 3), 5);
  EXPECT_EQ(Sum(absl::DataLossError("a"), 3).status(), absl::DataLossError("a"));
  EXPECT_EQ(Sum(2, absl::AbortedError("b")).status(), absl::AbortedError("b"));
}

absl::StatusOr<std::unique_ptr<int>> Made(int value) { return std::make_unique<int>(value); }

absl::StatusOr<int> MovesOut() {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<int> owned, Made(7));
  return *owned;
}

TEST(StatusTest, AssignMovesTheValue) { EXPECT_EQ(*MovesOut(), 7); }

absl::Status CountsEvaluations(int& evaluations) {
  const auto next = [&] {
    ++evaluations;
    return absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(next());
  return absl::OkStatus();
}

TEST(StatusTest, TheExpressionIsEvaluatedOnce) {
  int evaluations = 0;
  EXPECT_TRUE(CountsEvaluations(evaluations).ok());
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckDeathTest, FailureNamesTheConditionAndThePlace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  RF_CHECK(1 + 1 == 2);
  EXPECT_DEATH(RF_CHECK(1 + 1 == 3), "status_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3");
}

TEST(CheckTest, DebugChecksCostNothingInRelease) {
  int evaluations = 0;
  const auto count = [&] { return ++evaluations > 0; };
  RF_DCHECK(count());
#ifdef NDEBUG
  EXPECT_EQ(evaluations, 0);
#else
  EXPECT_EQ(evaluations, 1);
#endif
}

}  // namespace
}  // namespace ringfill
