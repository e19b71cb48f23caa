// How every transport must fail, over {transport} x {1..5 ranks}: deadlines, mismatches, events
// that fail, aborts from any side at any time, destruction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/comm/transports.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Combine(testing::ValuesIn(AllTransports()), testing::Range(1, 6)),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(All, PeerTest,
                         testing::Combine(testing::ValuesIn(AllTransports()), testing::Range(2, 6)),
                         TransportName);

// Rank 0 keeps away until the others have given up.
TEST_P(PeerTest, ExchangeWithAnAbsentPeerEndsAtItsDeadline) {
  std::atomic<int> ended{0};
  const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) {
      while (ended < comm.size() - 1) std::this_thread::yield();
      return absl::OkStatus();
    }
    Buffer send(comm, 100), recv(comm, 100);
    const Instant deadline = In(milliseconds(20));
    const absl::Status status = Exchange(comm, ExchangeOf(0, 0, send, recv, deadline));
    const bool early = Clock::Real().Now() < deadline && comm.size() == 2;
    ++ended;
    return early ? absl::InternalError("gave up before the deadline") : status;
  });
  EXPECT_TRUE(statuses[0].ok());
  for (int rank = 1; rank < ranks(); ++rank) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded) << statuses[rank];
  }
}

TEST_P(PeerTest, CollectiveWithAnAbsentPeerEndsAtItsDeadline) {
  for (const size_t bytes : {0, 10, 1 << 20}) {
    std::atomic<int> ended{0};
    const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
      if (comm.rank() == 0) {
        while (ended < comm.size() - 1) std::this_thread::yield();
        return absl::OkStatus();
      }
      const Instant deadline = In(milliseconds(20));
      Buffer send(comm, bytes), recv(comm, bytes * comm.size());
      const absl::Status status =
          bytes > 0 ? AllGather(comm, GatherOf(send, recv, deadline)) : comm.Barrier(deadline);
      ++ended;
      return status;
    });
    EXPECT_TRUE(statuses[0].ok());
    for (int rank = 1; rank < ranks(); ++rank) {
      EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded) << statuses[rank];
    }
  }
}

TEST_P(TransportTest, OwnWorkThatIsLateEndsAtTheDeadline) {
  for (const bool gather : {false, true}) {
    ExpectAll(Spawn([&](Communicator& comm) -> absl::Status {
                Buffer send(comm, 10), recv(comm, 10 * comm.size());
                const Instant deadline = In(milliseconds(20));
                if (gather) return AllGather(comm, GatherOf(send, recv, deadline, {Pending()}));
                return Exchange(comm, ExchangeOf(Next(comm), Previous(comm), send,
                                                 std::span(recv).first(10), deadline, {Pending()}));
              }),
              absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_P(PeerTest, FailureOfOneRankFailsTheGroup) {
  // Rank 1 waits for rank 0, which never sends; the others hang on an all-gather without a
  // deadline to speak of and must be freed by rank 1's failure.
  ExpectAll(Spawn([&](Communicator& comm) -> absl::Status {
              Buffer send(comm, 8), recv(comm, 8 * comm.size());
              if (comm.rank() != 1) return AllGather(comm, GatherOf(send, recv));
              return Exchange(
                  comm, ExchangeOf(0, 0, send, std::span(recv).first(8), In(milliseconds(5))));
            }),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportTest, EventThatFailsEndsTheTransferAndTheEpoch) {
  const absl::Status reason = absl::InternalError("the device failed");
  for (const bool gather : {false, true}) {
    for (const bool at_start : {false, true}) {
      ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
        Buffer send(comm, 8), recv(comm, 8 * comm.size());
        std::vector<EventPtr> after;
        const auto late = Pending();
        if (comm.rank() == 0) after = {at_start ? Completed(reason) : late};
        const TransferPtr transfer =
            gather ? comm.StartAllGather(GatherOf(send, recv, Soon(), after))
                   : comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), send,
                                                   std::span(recv).first(8), Soon(), after));
        if (comm.rank() == 0 && !at_start) late->Complete(reason);
        const absl::Status status = transfer->Await(Soon());
        if (status != reason) {
          // Ranks that trade among themselves alone may have been done before.
          const bool apart = !gather && Next(comm) != 0 && Previous(comm) != 0;
          if (!apart || !status.ok()) return absl::InternalError(status.ToString());
        }
        if (comm.Barrier(Soon()) != reason) return absl::InternalError("the epoch goes on");
        return absl::OkStatus();
      }));
    }
  }
}

TEST_P(PeerTest, ExchangeOfUnequalSizesIsDataLossOnBothSides) {
  if (!transport().tells_sizes) GTEST_SKIP() << transport().name << " cannot tell";
  for (const size_t sent : {63, 65, 3 << 20}) {
    // Rank 0 sends too little or too much to rank 1; both must learn of it. The rest may be done.
    std::vector<std::byte> content(64 + 4096, std::byte{0x5a});
    const Buffer around(1, content.size());
    Write(around, content.data());
    const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
      Buffer send(comm, comm.rank() == 0 ? sent : 64), own(comm, 64);
      const std::span<std::byte> recv =
          comm.rank() == 1 ? std::span(around).first(64) : std::span(own);
      return Exchange(comm, ExchangeOf(Next(comm), Previous(comm), send, recv));
    });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDataLoss) << statuses[0];
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDataLoss) << statuses[1];
    EXPECT_THAT(std::string(statuses[1].message()), testing::HasSubstr(std::to_string(sent)));
    Read(content.data(), around);
    for (size_t i = 64; i < content.size(); ++i) {
      ASSERT_EQ(content[i], std::byte{0x5a}) << "written past the buffer's end";
    }
  }
}

TEST_P(PeerTest, AllGatherOfUnequalSizesIsDataLoss) {
  if (!transport().tells_sizes) GTEST_SKIP() << transport().name << " cannot tell";
  // Small ones, a small and a large one, an empty one, large ones.
  for (const std::pair<size_t, size_t>& sizes : std::vector<std::pair<size_t, size_t>>{
           {4, 5}, {4, 1 << 20}, {1 << 20, 4}, {4, 0}, {0, 4}, {1 << 20, (1 << 20) + 1}}) {
    ExpectAll(Spawn([&](Communicator& comm) -> absl::Status {
                const size_t bytes = comm.rank() == 1 ? sizes.second : sizes.first;
                Buffer send(comm, bytes), recv(comm, bytes * comm.size());
                return AllGather(comm, GatherOf(send, recv));
              }),
              absl::StatusCode::kDataLoss);
  }
}

// What ranks are doing when the abort comes.
enum class State { kIdle, kExchange, kQueuedExchange, kAwaitingEvents, kAllGather, kBarrier };
constexpr State kStates[] = {State::kIdle,           State::kExchange,  State::kQueuedExchange,
                             State::kAwaitingEvents, State::kAllGather, State::kBarrier};

absl::Status Same(const absl::Status& a, const absl::Status& b) {
  return a == b ? a : absl::InternalError("statuses differ");
}

absl::Status BeIn(State state, Communicator& comm) {
  Buffer send(comm, 1000), recv(comm, 1000 * comm.size());
  const auto exchange = [&](std::vector<EventPtr> after = {}) {
    return ExchangeOf(0, 0, send, std::span(recv).first(1000), Soon(), std::move(after));
  };
  switch (state) {
    case State::kIdle:
      return absl::OkStatus();
    case State::kExchange:
      return Exchange(comm, exchange());
    case State::kQueuedExchange: {
      const TransferPtr first = comm.StartExchange(exchange());
      const absl::Status second = Exchange(comm, exchange());
      return Same(first->Await(Soon()), second);
    }
    case State::kAwaitingEvents: {
      const TransferPtr first = comm.StartExchange(exchange({Pending()}));
      const absl::Status second = AllGather(comm, GatherOf(send, recv, Soon(), {Pending()}));
      return Same(first->Await(Soon()), second);
    }
    case State::kAllGather:
      return AllGather(comm, GatherOf(send, recv));
    case State::kBarrier:
      return comm.Barrier(Soon());
  }
  return absl::InternalError("unknown state");
}

// The last rank aborts while the others are on their way into, or in, a wait for rank 0; then rank
// 0 does.
TEST_P(TransportTest, AbortEndsEveryWaitAndEveryLaterCall) {
  const absl::Status first = absl::UnavailableError("the first abort");
  for (const State state : kStates) {
    for (const bool after_entering : {false, true}) {
      std::atomic<int> entering{0};
      const Instant start = Clock::Real().Now();
      ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
        ++entering;
        if (comm.rank() == 0) {
          while (after_entering && entering < comm.size()) std::this_thread::yield();
          comm.Abort(first);
          comm.Abort(absl::InternalError("a later abort"));
        } else {
          const absl::Status status = BeIn(state, comm);
          if (state == State::kIdle) {
            // The abort may still be on its way: a call that waits for rank 0 ends with it.
            if (comm.Barrier(Soon()) != first) return absl::InternalError("abort did not arrive");
          } else if (status != first) {
            return absl::InternalError("ended with " + status.ToString());
          }
        }
        for (const State later : {State::kExchange, State::kAllGather, State::kBarrier}) {
          const absl::Status status = BeIn(later, comm);
          if (status != first) return absl::InternalError("later call: " + status.ToString());
        }
        return absl::OkStatus();
      }));
      // Far below the deadline of the calls: they were woken, they did not expire.
      ASSERT_LT(Clock::Real().Now() - start, seconds(30));
    }
  }
}

// Each rank in turn aborts in the middle of large transfers; nobody writes or reads buffers that
// were given back (the sanitizers watch).
TEST_P(PeerTest, AbortInTheMiddleOfTraffic) {
  constexpr size_t kBytes = 8 << 20;
  const absl::Status reason = absl::CancelledError("enough");
  for (int aborter = 0; aborter < ranks(); ++aborter) {
    std::atomic<int> moving{0};
    ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
      for (int turn = 0;; ++turn) {
        auto send = std::make_unique<Buffer>(comm, kBytes);
        auto recv = std::make_unique<Buffer>(comm, kBytes);
        auto parts = std::make_unique<Buffer>(comm, kBytes / 8 * comm.size());
        const TransferPtr exchange =
            comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), *send, *recv));
        const TransferPtr gather =
            comm.StartAllGather(GatherOf(std::span(*send).first(kBytes / 8), *parts));
        if (turn == 1) ++moving;
        if (comm.rank() == aborter && moving == comm.size()) comm.Abort(reason);
        const absl::Status gathered = gather->Await(Soon()), exchanged = exchange->Await(Soon());
        if (gathered == reason || exchanged == reason) return absl::OkStatus();
        RF_RETURN_IF_ERROR(gathered);
        RF_RETURN_IF_ERROR(exchanged);
      }
    }));
  }
}

TEST_P(TransportTest, AbortFromAThreadThatIsNoRank) {
  const absl::Status reason = absl::CancelledError("from outside");
  std::vector<std::unique_ptr<Communicator>> ends = Make();
  std::vector<absl::Status> statuses(ranks());
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = BeIn(State::kExchange, *ends[rank]); });
  }
  ends[0]->Abort(reason);
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < ranks(); ++rank) EXPECT_EQ(statuses[rank], reason);
  EXPECT_EQ(ends[0]->Barrier(Soon()), reason);
}

TEST_P(PeerTest, AbortIsQuick) {
  std::vector<std::unique_ptr<Communicator>> ends = Make();
  std::vector<Instant> woken(ranks());
  std::atomic<int> entering{0};
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      ++entering;
      BeIn(State::kExchange, *ends[rank]).IgnoreError();
      woken[rank] = Clock::Real().Now();
    });
  }
  while (entering < ranks() - 1) std::this_thread::yield();
  const Instant aborted = Clock::Real().Now();
  ends[0]->Abort(absl::CancelledError("now"));
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < ranks(); ++rank) {
    EXPECT_LT(Milliseconds(woken[rank] - aborted), 1000) << "rank " << rank;
  }
}

TEST_P(PeerTest, EndsMayBeDestroyedWithTransfersUnderWay) {
  Buffer send(1, 100), recv(1, 100), part(1, 100), parts(1, 100 * ranks());
  std::vector<std::unique_ptr<Communicator>> ends = Make();
  const TransferPtr exchange = ends[1]->StartExchange(ExchangeOf(0, 0, send, recv));
  const TransferPtr queued = ends[1]->StartExchange(ExchangeOf(0, 0, send, recv));
  const TransferPtr gather = ends[1]->StartAllGather(GatherOf(part, parts, Soon(), {Pending()}));
  ends.clear();
  for (const TransferPtr& transfer : {exchange, queued, gather}) {
    ASSERT_TRUE(transfer->done());
    EXPECT_FALSE(transfer->Await(Soon()).ok());
  }
}

}  // namespace
}  // namespace ringfill
