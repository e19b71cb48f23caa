#include "engine/comm/tcp/heartbeat.h"

#include <gtest/gtest.h>

namespace ringfill {
namespace {

using std::chrono::seconds;

const Instant kStart = Instant() + std::chrono::hours(1);

TEST(SilenceTest, LastsFromWhatWasHeardLast) {
  Silence silence(kStart);
  EXPECT_EQ(silence.At(kStart + seconds(3)), seconds(3));
  silence.Heard(kStart + seconds(2));
  silence.Heard(kStart + seconds(1));  // comes to light later
  EXPECT_EQ(silence.At(kStart + seconds(3)), seconds(1));
}

TEST(SilenceTest, ALookThatIsAboutInTimeChangesNothing) {
  Silence silence(kStart);
  silence.Look(kStart + seconds(1), kStart + seconds(1) + kBeatPeriod);
  EXPECT_EQ(silence.At(kStart + seconds(3)), seconds(3));
}

TEST(SilenceTest, OnesOwnPauseIsNotThePeersSilence) {
  Silence silence(kStart);
  silence.Look(kStart + seconds(1), kStart + seconds(101));
  EXPECT_EQ(silence.At(kStart + seconds(101)), seconds(1));
  // Heard in the pause: nothing is owed for it.
  silence.Heard(kStart + seconds(150));
  silence.Look(kStart + seconds(110), kStart + seconds(160));
  EXPECT_EQ(silence.At(kStart + seconds(160)), seconds(0));
}

TEST(SilenceTest, APeerThatNeedNotHaveBegunOwesNoSign) {
  Silence silence(kStart + seconds(60));
  silence.Look(kStart, kStart + seconds(10));
  EXPECT_EQ(silence.At(kStart + seconds(61)), seconds(1));
  silence.Heard(kStart + seconds(20));
  EXPECT_EQ(silence.At(kStart + seconds(61)), seconds(41));
}

}  // namespace
}  // namespace ringfill
