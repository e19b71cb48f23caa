// What every host stream promises, whether it runs work at once or late.
#include "engine/stream/host_stream.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/late_device.h"

namespace ringfill {
namespace {

Instant InTwoMinutes() { return Clock::Real().Now() + std::chrono::minutes(2); }

// 0: inline; otherwise the seed of a late stream.
class HostStreamTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<HostStream> Make(TraceBuffer* trace = nullptr) {
    if (GetParam() == 0) return MakeInlineStream(Clock::Real(), trace);
    return MakeLateStream(static_cast<uint64_t>(GetParam()), Clock::Real(), trace);
  }
};

TEST_P(HostStreamTest, RunsEverythingInOrder) {
  const auto stream = Make();
  std::vector<int> order;
  for (int i = 0; i < 200; ++i) {
    stream->Enqueue({}, [&order, i] {
      order.push_back(i);
      return absl::OkStatus();
    });
    if (i % 7 == 0) {
      const EventPtr event = stream->Record();
      EXPECT_TRUE(event->Await(InTwoMinutes()).ok());
      EXPECT_TRUE(event->done());
      EXPECT_EQ(order.size(), static_cast<size_t>(i + 1));
    }
  }
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  ASSERT_EQ(order.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_P(HostStreamTest, AFailureSkipsWhatIsBehindUntilCleared) {
  const auto stream = Make();
  bool ran = false;
  const EventPtr before = stream->Record();
  stream->Enqueue({}, [] { return absl::DataLossError("first"); });
  stream->Enqueue({}, [&] {
    ran = true;
    return absl::InternalError("second");
  });
  const EventPtr behind = stream->Record();
  EXPECT_TRUE(before->Await(InTwoMinutes()).ok());
  EXPECT_EQ(behind->Await(InTwoMinutes()), absl::DataLossError("first"));
  EXPECT_EQ(stream->Synchronize(InTwoMinutes()), absl::DataLossError("first"));
  EXPECT_EQ(stream->status(), absl::DataLossError("first"));
  EXPECT_FALSE(ran);
  stream->Clear();
  EXPECT_TRUE(stream->status().ok());
  stream->Enqueue({}, [&] {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  EXPECT_TRUE(ran);
}

TEST_P(HostStreamTest, WaitsForEventsOfOthers) {
  const auto stream = Make();
  auto event = std::make_shared<HostEvent>();
  int value = 0, seen = 0;
  std::thread other([&] {
    value = 7;
    event->Complete(absl::OkStatus());
  });
  stream->WaitFor(nullptr, InTwoMinutes());  // no effect
  stream->WaitFor(event, InTwoMinutes());
  stream->Enqueue({}, [&] {
    seen = value;
    return absl::OkStatus();
  });
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  EXPECT_EQ(seen, 7);
  other.join();
}

TEST_P(HostStreamTest, AnEventThatFailsOrDoesNotComeFailsTheStream) {
  const auto stream = Make();
  auto failed = std::make_shared<HostEvent>();
  failed->Complete(absl::AbortedError("a peer is gone"));
  stream->WaitFor(failed, InTwoMinutes());
  EXPECT_EQ(stream->Synchronize(InTwoMinutes()), absl::AbortedError("a peer is gone"));
  stream->Clear();
  const auto never = std::make_shared<HostEvent>();
  stream->WaitFor(never, Clock::Real().Now() + std::chrono::milliseconds(5));
  bool ran = false;
  stream->Enqueue({}, [&] {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_EQ(stream->Synchronize(InTwoMinutes()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(ran);
}

TEST_P(HostStreamTest, KeepsWhatAnOperationOwnsUntilItHasRun) {
  const auto stream = Make();
  auto owned = std::make_shared<int>(5);
  const std::weak_ptr<int> watch = owned;
  int seen = 0;
  stream->Enqueue({}, [owned = std::move(owned), &seen] {
    seen = *owned;
    return absl::OkStatus();
  });
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  EXPECT_EQ(seen, 5);
  EXPECT_TRUE(watch.expired());
}

TEST_P(HostStreamTest, CountsTimeAndTraces) {
  TraceBuffer trace;
  const auto stream = Make(&trace);
  const auto spin = [] {
    const Instant end = Clock::Real().Now() + std::chrono::milliseconds(2);
    while (Clock::Real().Now() < end) std::this_thread::yield();
    return absl::OkStatus();
  };
  stream->Enqueue({.kind = OpKind::kAttend, .layer = 1}, spin);
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  EXPECT_TRUE(trace.Take().empty());
  EXPECT_GE(stream->TakeTimes().busy_s, 0.002);
  EXPECT_EQ(stream->TakeTimes().busy_s, 0);
  trace.Enable(true);
  stream->Enqueue({.kind = OpKind::kMerge, .layer = 4, .round = 2, .bytes = 9}, spin);
  EXPECT_TRUE(stream->Synchronize(InTwoMinutes()).ok());
  const std::vector<TraceSpan> spans = trace.Take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].label.kind, OpKind::kMerge);
  EXPECT_EQ(spans[0].label.layer, 4);
  EXPECT_EQ(spans[0].label.round, 2);
  EXPECT_EQ(spans[0].label.bytes, 9);
  EXPECT_EQ(spans[0].lane, TraceLane::kCompute);
  EXPECT_GE(Seconds(spans[0].end - spans[0].begin), 0.002);
  const auto late = std::make_shared<HostEvent>();
  stream->TakeTimes();
  stream->WaitFor(late, Clock::Real().Now() + std::chrono::milliseconds(5));
  EXPECT_FALSE(stream->Synchronize(InTwoMinutes()).ok());
  EXPECT_GT(stream->TakeTimes().wait_s, 0);
}

INSTANTIATE_TEST_SUITE_P(Streams, HostStreamTest, testing::Values(0, 1, 2, 3, 4, 5),
                         [](const auto& info) { return "seed" + std::to_string(info.param); });

}  // namespace
}  // namespace ringfill
