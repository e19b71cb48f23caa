#include "engine/compute/cpu/thread_team.h"

#include "gtest/gtest.h"

namespace ringfill {
namespace {

class ThreadTeamTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ThreadTeamTest, RunsEveryIndexOnce) {
  const int threads = std::get<0>(GetParam()), spin = std::get<1>(GetParam());
  ThreadTeam team(threads, spin);
  EXPECT_EQ(team.size(), threads);
  for (int64_t n : {0, 1, 2, 3, 1000}) {
    // Plain ints: the team orders all accesses, which the thread sanitizer checks.
    std::vector<int> count(static_cast<size_t>(n), 0);
    for (int round = 0; round < 50; ++round) {
      team.ParallelFor(n, [&](int thread, int64_t i) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++count[static_cast<size_t>(i)];
      });
    }
    for (int c : count) EXPECT_EQ(c, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamTest,
                         testing::Combine(testing::Values(1, 2, 5), testing::Values(0, 2000)));

}  // namespace
}  // namespace ringfill
