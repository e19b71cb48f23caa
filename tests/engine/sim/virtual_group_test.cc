// Transfers in simulated time, against times worked out by hand.
#include "engine/sim/virtual_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/sim/virtual_stream.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant Soon() { return Clock::Real().Now() + seconds(60); }

// One rank of a simulated group and what it needs.
struct Rank {
  RankTime time;
  TraceBuffer trace;
  VirtualStream stream{time, &trace};
  std::unique_ptr<Communicator> comm;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);

  void Op(double cost_s) { stream.Run({}, cost_s); }
  TransferPtr Exchange(int to, int from, size_t send, size_t recv,
                       std::vector<EventPtr> after = {}) {
    return comm->StartExchange({.label = {.kind = OpKind::kExchange},
                                .to = to,
                                .from = from,
                                .send = std::span(memory).first(send),
                                .recv = std::span(memory).first(recv),
                                .after = std::move(after),
                                .deadline = Soon()});
  }
  TransferPtr AllGather(size_t bytes, std::vector<EventPtr> after = {}) {
    return comm->StartAllGather(
        {.label = {.kind = OpKind::kAllGather},
         .send = std::span(memory).first(bytes),
         .recv = std::span(memory).first(bytes * static_cast<size_t>(comm->size())),
         .after = std::move(after),
         .deadline = Soon()});
  }
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks MakeRanks(const Figures& figures) {
  Ranks ranks;
  std::vector<RankTime*> times;
  for (int r = 0; r < figures.ranks(); ++r) {
    ranks.push_back(std::make_unique<Rank>());
    times.push_back(&ranks.back()->time);
  }
  auto group = MakeVirtualGroup(figures, times);
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r]->comm = std::move(group[r]);
  return ranks;
}

// A quarter of a second, then 100 bytes a second.
Figures SlowLinks(int ranks) {
  return Figures::Uniform(ranks, DeviceFigures{}, {.latency_s = 0.25, .bytes_per_s = 100});
}

void RunAll(Ranks& ranks, const std::function<void(int, Rank&)>& body) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { body(static_cast<int>(r), *ranks[r]); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(VirtualGroup, ExchangeOverlapsAnOperation) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    rank.Op(r == 0 ? 1.0 : 1.5);
    TransferPtr exchange = rank.Exchange(1 - r, 1 - r, 100, 100, {rank.stream.Record()});
    rank.Op(r == 0 ? 2.0 : 0.5);
    rank.stream.WaitFor(exchange, Soon());
    rank.Op(0.5);
    EXPECT_TRUE(rank.stream.Synchronize(Soon()).ok());
  });
  // Both ready at 1.5, 1.25 to move: done at 2.75. Rank 0 computes until 3.0, rank 1 until 2.0.
  EXPECT_DOUBLE_EQ(ranks[0]->stream.now_s(), 3.5);
  EXPECT_DOUBLE_EQ(ranks[1]->stream.now_s(), 3.25);
  const StreamTimes first = ranks[0]->stream.TakeTimes();
  const StreamTimes second = ranks[1]->stream.TakeTimes();
  EXPECT_DOUBLE_EQ(first.busy_s, 3.5);
  EXPECT_DOUBLE_EQ(first.wait_s, 0.0);
  EXPECT_DOUBLE_EQ(second.busy_s, 2.5);
  EXPECT_DOUBLE_EQ(second.wait_s, 0.75);
  EXPECT_DOUBLE_EQ(TrafficOf(*ranks[0]->comm).lane_s, 1.25);
  EXPECT_EQ(TrafficOf(*ranks[0]->comm).sent_bytes, 100);
}

TEST(VirtualGroup, BothDirectionsOfARankRunAtOnce) {
  Ranks ranks = MakeRanks(SlowLinks(3));
  RunAll(ranks, [](int r, Rank& rank) {
    TransferPtr exchange = rank.Exchange((r + 1) % 3, (r + 2) % 3, 200, 200);
    rank.stream.WaitFor(exchange, Soon());
  });
  for (auto& rank : ranks) EXPECT_DOUBLE_EQ(rank->stream.now_s(), 2.25);
}

TEST(VirtualGroup, ExchangesOfARankKeepTheirOrder) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    rank.Op(3.0);
    TransferPtr late = rank.Exchange(1 - r, 1 - r, 100, 100, {rank.stream.Record()});
    TransferPtr behind = rank.Exchange(1 - r, 1 - r, 100, 100);
    rank.stream.WaitFor(behind, Soon());
    EXPECT_TRUE(late->done());
    EXPECT_EQ(late->transfer_time(), milliseconds(1250));
  });
  for (auto& rank : ranks) EXPECT_DOUBLE_EQ(rank->stream.now_s(), 3.0 + 2 * 1.25);
}

TEST(VirtualGroup, AnExchangeWaitsForTheLaneOfItsPeer) {
  // Rank 1 first talks to rank 2, so that rank 0 finds its lane busy.
  Ranks ranks = MakeRanks(SlowLinks(3));
  RunAll(ranks, [](int r, Rank& rank) {
    if (r == 1) rank.stream.WaitFor(rank.Exchange(2, 2, 100, 0), Soon());
    if (r == 2) rank.stream.WaitFor(rank.Exchange(1, 1, 0, 100), Soon());
    if (r == 1) rank.stream.WaitFor(rank.Exchange(0, 0, 0, 50), Soon());
    if (r == 0) rank.stream.WaitFor(rank.Exchange(1, 1, 50, 0), Soon());
  });
  EXPECT_DOUBLE_EQ(ranks[2]->stream.now_s(), 1.25);
  EXPECT_DOUBLE_EQ(ranks[0]->stream.now_s(), 1.25 + 0.75);
}

TEST(VirtualGroup, LinksMayDiffer) {
  Figures figures = SlowLinks(2);
  figures.Link(1, 0).bytes_per_s = 50;
  Ranks ranks = MakeRanks(figures);
  RunAll(ranks, [](int r, Rank& rank) {
    TransferPtr exchange = rank.Exchange(1 - r, 1 - r, 100, 100);
    rank.stream.WaitFor(exchange, Soon());
  });
  // An exchange ends with the slower of its directions.
  for (auto& rank : ranks) EXPECT_DOUBLE_EQ(rank->stream.now_s(), 2.25);
}

TEST(VirtualGroup, AllGatherBeginsWithTheLastRank) {
  Figures figures = SlowLinks(4);
  figures.gather = {.latency_s = 0.5, .bytes_per_s = 10};
  Ranks ranks = MakeRanks(figures);
  RunAll(ranks, [](int r, Rank& rank) {
    rank.Op(r);
    TransferPtr gather = rank.AllGather(20, {rank.stream.Record()});
    rank.stream.WaitFor(gather, Soon());
  });
  for (auto& rank : ranks) {
    EXPECT_DOUBLE_EQ(rank->stream.now_s(), 3 + 0.5 + 3 * 20 / 10.0);
    EXPECT_EQ(TrafficOf(*rank->comm).sent_bytes, 60);
  }
}

TEST(VirtualGroup, WhatTheHostWaitedForDelaysWhatItStarts) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    EXPECT_TRUE(rank.Exchange(1 - r, 1 - r, 100, 100)->Await(Soon()).ok());
    EXPECT_DOUBLE_EQ(rank.time.host_s, 1.25);
    rank.Op(1.0);
  });
  for (auto& rank : ranks) EXPECT_DOUBLE_EQ(rank->stream.now_s(), 2.25);
}

TEST(VirtualGroup, TimesDoNotDependOnWhenThreadsRun) {
  auto run = [](int busy_rank) {
    Ranks ranks = MakeRanks(SlowLinks(4));
    RunAll(ranks, [busy_rank](int r, Rank& rank) {
      TransferPtr last;
      for (int i = 0; i < 50; ++i) {
        if (r == busy_rank) std::this_thread::yield();
        rank.Op(0.01 * ((r * 7 + i * 3) % 5));
        last = rank.Exchange((r + 1) % 4, (r + 3) % 4, 10 + i, 10 + i, {rank.stream.Record()});
        if (i % 3 == r % 3) rank.stream.WaitFor(last, Soon());
        if (i % 10 == 0) rank.stream.WaitFor(rank.AllGather(5), Soon());
      }
      rank.stream.WaitFor(last, Soon());
    });
    std::vector<double> times;
    for (auto& rank : ranks) times.push_back(rank->stream.now_s());
    return times;
  };
  const std::vector<double> first = run(-1);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(run(i % 4), first);
}

TEST(VirtualGroup, ADifferentLengthFailsBothSides) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    TransferPtr exchange = rank.Exchange(1 - r, 1 - r, r == 0 ? 100 : 50, r == 0 ? 50 : 99);
    rank.stream.WaitFor(exchange, Soon());
    EXPECT_EQ(rank.stream.status().code(), absl::StatusCode::kDataLoss) << rank.stream.status();
  });
}

TEST(VirtualGroup, ARankThatNeverComesIsADeadline) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  TransferPtr exchange = ranks[0]->Exchange(1, 1, 1, 1);
  EXPECT_EQ(exchange->Await(Clock::Real().Now() + milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ranks[1]->Exchange(0, 0, 1, 1)->Await(Soon()).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(VirtualGroup, AFailedStreamAbortsTheGroup) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    if (r == 0) rank.stream.Fail(absl::InternalError("broken"));
    TransferPtr exchange = rank.Exchange(1 - r, 1 - r, 1, 1, {rank.stream.Record()});
    EXPECT_EQ(exchange->Await(Soon()).code(), absl::StatusCode::kInternal);
  });
}

TEST(VirtualGroup, TracesBothLanes) {
  Ranks ranks = MakeRanks(SlowLinks(2));
  RunAll(ranks, [](int r, Rank& rank) {
    rank.trace.Enable(true);
    rank.comm->TraceTo(&rank.trace);
    rank.Op(1.0);
    rank.stream.WaitFor(rank.Exchange(1 - r, 1 - r, 100, 100, {rank.stream.Record()}), Soon());
  });
  for (auto& rank : ranks) {
    const std::vector<TraceSpan> spans = rank->trace.Take();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].lane, TraceLane::kCompute);
    EXPECT_EQ(spans[0].end - spans[0].begin, seconds(1));
    EXPECT_EQ(spans[1].lane, TraceLane::kComm);
    EXPECT_EQ(spans[1].begin.time_since_epoch(), seconds(1));
    EXPECT_EQ(spans[1].end.time_since_epoch(), milliseconds(2250));
  }
}

}  // namespace
}  // namespace ringfill
