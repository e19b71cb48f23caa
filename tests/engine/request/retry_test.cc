#include "engine/request/retry.h"

#include <string>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

absl::string_view Type() { return {kRetryInfoType.data(), kRetryInfoType.size()}; }

std::optional<Duration> Read(const std::string& payload) {
  absl::Status status = absl::UnavailableError("x");
  status.SetPayload(Type(), absl::Cord(payload));
  return RetryAfter(status);
}

TEST(RetryTest, ComesBackAsItWas) {
  for (const Duration delay :
       {Duration(0), Duration(nanoseconds(1)), Duration(milliseconds(250)), Duration(seconds(1)),
        Duration(milliseconds(2500)), Duration(hours(1000000))}) {
    const absl::Status status = WithRetryAfter(absl::UnavailableError("later"), delay);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "later");
    EXPECT_EQ(RetryAfter(status), delay);
  }
}

// As protobuf encodes RetryInfo{retry_delay: {seconds: 300, nanos: 500000000}}.
TEST(RetryTest, IsProtobufsEncoding) {
  const absl::Status status =
      WithRetryAfter(absl::UnavailableError(""), seconds(300) + milliseconds(500));
  EXPECT_EQ(std::string(status.GetPayload(Type()).value()),
            std::string("\x0a\x09\x08\xac\x02\x10\x80\xca\xb5\xee\x01", 11));
}

TEST(RetryTest, TheLastAdviceCounts) {
  const absl::Status first = WithRetryAfter(absl::UnavailableError(""), seconds(1));
  EXPECT_EQ(RetryAfter(WithRetryAfter(first, seconds(2))), Duration(seconds(2)));
}

TEST(RetryTest, WithoutOrWithBadAdviceThereIsNone) {
  EXPECT_EQ(RetryAfter(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(RetryAfter(absl::UnavailableError("")), std::nullopt);
  for (const std::string& bad :
       {std::string(), std::string("\x0a"), std::string("\x0a\x05\x08\x01"),
        std::string("\x0a\x02\x08\x80", 4), std::string("\x12\x02\x08\x01", 4),
        std::string("\x0a\x02\x18\x01", 4), std::string("\x0a\x01\x08", 3),
        std::string("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13)}) {
    EXPECT_EQ(Read(bad), std::nullopt) << bad.size();
  }
  EXPECT_EQ(Read(std::string("\x0a\x00", 2)), Duration(0));
}

}  // namespace
}  // namespace ringfill
