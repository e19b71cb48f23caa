#include "engine/worker/link_faults.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

const Instant kStart = Instant() + std::chrono::hours(1);

TEST(LinkFaultsTest, OneFailureToConnectIsNotYetBelieved) {
  LinkFaults faults({});
  EXPECT_THAT(faults.LeaveOut({{0, 1}, {1, 0}}, kStart), IsEmpty());
  EXPECT_FALSE(faults.IsOut(1, kStart));
  EXPECT_THAT(faults.LeaveOut({{0, 1}}, kStart + seconds(2)), ElementsAre(1));
  EXPECT_TRUE(faults.IsOut(1, kStart + seconds(3)));
  EXPECT_FALSE(faults.IsOut(0, kStart + seconds(3)));
}

TEST(LinkFaultsTest, ALinkThatDiedInARingIsBelievedAtOnce) {
  LinkFaults faults({});
  EXPECT_TRUE(faults.Note(2, 0, kStart));
  EXPECT_FALSE(faults.Note(0, 2, kStart));
  EXPECT_THAT(faults.LeaveOut({{0, 2}}, kStart + seconds(1)), ElementsAre(2));
}

TEST(LinkFaultsTest, WhatConnectsAgainCostsNobody) {
  LinkFaults faults({});
  faults.Note(0, 1, kStart);
  EXPECT_THAT(faults.LeaveOut({{1, 2}}, kStart + seconds(1)), IsEmpty());
}

TEST(LinkFaultsTest, TheOneWithMostDeadLinksGoes) {
  LinkFaults faults({});
  const std::vector<LinkFaults::Link> all = {{0, 1}, {2, 0}, {3, 0}};
  EXPECT_THAT(faults.LeaveOut(all, kStart), IsEmpty());
  EXPECT_THAT(faults.LeaveOut(all, kStart), ElementsAre(0));
  LinkFaults other({});
  const std::vector<LinkFaults::Link> pairs = {{0, 1}, {2, 3}};
  EXPECT_THAT(other.LeaveOut(pairs, kStart), IsEmpty());
  EXPECT_THAT(other.LeaveOut(pairs, kStart), ElementsAre(3, 1));
}

// Rank 0 is cut off from both, but the ring ended at the first of its links that was found dead.
TEST(LinkFaultsTest, OfTwoAlikeTheOneWithMostLinksUnmadeGoes) {
  LinkFaults faults({});
  faults.Note(0, 1, kStart);
  EXPECT_THAT(faults.LeaveOut({{0, 1}, {1, 0}, {0, 2}, {2, 0}}, kStart), ElementsAre(0));
  LinkFaults two({});
  two.Note(0, 1, kStart);
  two.Note(0, 4, kStart);
  two.Note(2, 3, kStart);
  // What was unmade with one that is left out counts no more.
  EXPECT_THAT(two.LeaveOut({{0, 1}, {0, 4}, {0, 2}, {2, 3}}, kStart), ElementsAre(0, 3));
}

TEST(LinkFaultsTest, WhoFailsByItselfGoesBeforeWhoCannotReachIt) {
  LinkFaults faults({});
  EXPECT_THAT(faults.LeaveOut({{0, 0}, {0, 1}}, kStart), IsEmpty());
  EXPECT_THAT(faults.LeaveOut({{0, 0}, {0, 1}}, kStart), ElementsAre(0));
  // It has to go in any case, so it goes before one with as many dead links to others.
  LinkFaults more({});
  const std::vector<LinkFaults::Link> unmade = {{0, 0}, {0, 1}, {1, 2}};
  EXPECT_THAT(more.LeaveOut(unmade, kStart), IsEmpty());
  EXPECT_THAT(more.LeaveOut(unmade, kStart), ElementsAre(0, 2));
}

TEST(LinkFaultsTest, WhoIsLeftOutMayReturnEachTimeLater) {
  LinkFaults faults({.first_backoff = seconds(10), .most_backoff = seconds(30)});
  faults.Note(0, 1, kStart);
  Instant now = kStart;
  for (const int wait : {10, 20, 30, 30}) {
    EXPECT_THAT(faults.LeaveOut({{0, 1}}, now), ElementsAre(1));
    EXPECT_TRUE(faults.IsOut(1, now + seconds(wait) - seconds(1)));
    now += seconds(wait);
    EXPECT_FALSE(faults.IsOut(1, now));
  }
}

TEST(LinkFaultsTest, OldFaultsAreForgotten) {
  LinkFaults faults({.first_backoff = seconds(10), .memory = minutes(5)});
  faults.Note(0, 1, kStart);
  EXPECT_THAT(faults.LeaveOut({{0, 1}}, kStart), ElementsAre(1));
  const Instant later = kStart + minutes(10);
  EXPECT_THAT(faults.LeaveOut({{0, 1}}, later), IsEmpty());
  EXPECT_THAT(faults.LeaveOut({{0, 1}}, later), ElementsAre(1));
  EXPECT_FALSE(faults.IsOut(1, later + seconds(10)));
}

}  // namespace
}  // namespace ringfill
