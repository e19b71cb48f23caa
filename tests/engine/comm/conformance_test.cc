// What every transport must do, over {transport} x {1..5 ranks} x {0, 1, odd, large} bytes. Another
// transport joins by adding its factory to kTransports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/local.h"
#include "tests/testing/local_ring.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Buffer = std::vector<std::byte>;

struct Transport {
  const char* name;
  std::vector<std::unique_ptr<Communicator>> (*make)(int ranks);
};

const Transport kTransports[] = {
    {"local", [](int ranks) { return MakeLocalGroup(ranks); }},
};

constexpr size_t kSizes[] = {0, 1, 4099, 3 << 20};

Instant Soon() { return Clock::Real().Now() + seconds(60); }

// Pattern `seed` is a window of one stretch of pseudo-random bytes.
std::span<const std::byte> Pattern(uint64_t seed, size_t bytes) {
  constexpr size_t kWindows = 4096;
  static const Buffer stretch = [] {
    Buffer made(*std::max_element(std::begin(kSizes), std::end(kSizes)) + kWindows);
    uint32_t state = 1;
    for (std::byte& byte : made) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>(state >> 24);
    }
    return made;
  }();
  return std::span(stretch).subspan(seed % kWindows, bytes);
}

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  if (!bytes.empty()) std::memcpy(bytes.data(), Pattern(seed, bytes.size()).data(), bytes.size());
}

absl::Status CheckPattern(std::span<const std::byte> bytes, uint64_t seed, const char* what) {
  if (bytes.empty() ||
      std::memcmp(bytes.data(), Pattern(seed, bytes.size()).data(), bytes.size()) == 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(std::string(what) + " has wrong bytes");
}

int Next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int Previous(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

RoundHeader HeaderFor(int layer, int round, int source, size_t bytes) {
  RoundHeader header;
  header.epoch = 3;
  header.step = 17;
  header.layer = layer;
  header.round = round;
  header.source = source;
  header.bytes = bytes;
  return header;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_TRUE(statuses[rank].ok()) << "rank " << rank << ": " << statuses[rank];
  }
}

void ExpectAll(const std::vector<absl::Status>& statuses, absl::StatusCode code) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank].code(), code) << "rank " << rank << ": " << statuses[rank];
  }
}

class TransportTest : public testing::TestWithParam<std::tuple<Transport, int>> {
 protected:
  int ranks() const { return std::get<1>(GetParam()); }
  std::vector<absl::Status> Spawn(const LocalRing::RankFunction& fn) {
    return LocalRing::SpawnOver(std::get<0>(GetParam()).make, ranks(), fn);
  }
};

// What needs a peer: from 2 ranks on.
class PeerTest : public TransportTest {};

class TransportSizeTest : public testing::TestWithParam<std::tuple<Transport, int, size_t>> {
 protected:
  size_t bytes() const { return std::get<2>(GetParam()); }
  std::vector<absl::Status> Spawn(const LocalRing::RankFunction& fn) {
    return LocalRing::SpawnOver(std::get<0>(GetParam()).make, std::get<1>(GetParam()), fn);
  }
};

std::string TransportName(const testing::TestParamInfo<std::tuple<Transport, int>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::to_string(std::get<1>(info.param)) +
         "ranks";
}

std::string SizeName(const testing::TestParamInfo<std::tuple<Transport, int, size_t>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::to_string(std::get<1>(info.param)) +
         "ranks_" + std::to_string(std::get<2>(info.param)) + "bytes";
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Combine(testing::ValuesIn(kTransports), testing::Range(1, 6)),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(All, PeerTest,
                         testing::Combine(testing::ValuesIn(kTransports), testing::Range(2, 6)),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(All, TransportSizeTest,
                         testing::Combine(testing::ValuesIn(kTransports), testing::Range(1, 6),
                                          testing::ValuesIn(kSizes)),
                         SizeName);

// One layer of a ring: the own shard goes around in size() - 1 rounds through two buffers, and the
// buffer that a round delivered is read ("computed on") while the next round sends it on.
absl::Status RunRing(Communicator& comm, int layer, size_t bytes) {
  const int n = comm.size();
  Buffer buffers[2] = {Buffer(sizeof(RoundHeader) + bytes), Buffer(sizeof(RoundHeader) + bytes)};
  const RoundHeader own = HeaderFor(layer, 0, comm.rank(), bytes);
  std::memcpy(buffers[0].data(), &own, sizeof(own));
  FillPattern(std::span(buffers[0]).subspan(sizeof(own)), layer * 100 + comm.rank());
  Buffer scratch(4096);
  for (int round = 0; round < n; ++round) {
    Buffer& current = buffers[round % 2];
    Buffer& incoming = buffers[(round + 1) % 2];
    const int source = (comm.rank() + n - round) % n;
    RoundHeader header;
    std::memcpy(&header, current.data(), sizeof(header));
    RF_RETURN_IF_ERROR(CheckRoundHeader(HeaderFor(layer, round, source, bytes), header));
    uint64_t ticket = 0;
    const bool last = round == n - 1;
    if (!last) {
      ++header.round;
      std::memcpy(current.data(), &header, sizeof(header));
      ticket = comm.StartExchange({Next(comm), Previous(comm), current, incoming, Soon()});
    }
    FillPattern(scratch, round);  // compute writes its own memory meanwhile
    RF_RETURN_IF_ERROR(CheckPattern(std::span(current).subspan(sizeof(header)),
                                    layer * 100 + source, "ring payload"));
    if (!last) RF_RETURN_IF_ERROR(comm.Wait(ticket).status);
    RF_RETURN_IF_ERROR(CheckPattern(scratch, round, "scratch"));
  }
  return absl::OkStatus();
}

TEST_P(TransportSizeTest, RingDeliversEveryShardWithItsHeader) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    for (int layer = 0; layer < 2; ++layer) RF_RETURN_IF_ERROR(RunRing(comm, layer, bytes()));
    return absl::OkStatus();
  }));
}

TEST_P(TransportSizeTest, AllGatherDeliversEveryPartInRankOrder) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    Buffer send(bytes());
    Buffer recv(bytes() * comm.size());
    for (int call = 0; call < 3; ++call) {
      FillPattern(send, call * 10 + comm.rank());
      RF_RETURN_IF_ERROR(comm.AllGather(send, recv, Soon()));
      for (int peer = 0; peer < comm.size(); ++peer) {
        RF_RETURN_IF_ERROR(CheckPattern(std::span(recv).subspan(peer * bytes(), bytes()),
                                        call * 10 + peer, "gathered part"));
      }
    }
    return absl::OkStatus();
  }));
}

// Several exchanges in flight, started in both directions and waited for in another order.
TEST_P(TransportSizeTest, StartedExchangesRunInOrderWhileComputeGoesOn) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    constexpr int kInFlight = 4;
    std::vector<Buffer> sends(kInFlight, Buffer(bytes())), recvs(kInFlight, Buffer(bytes()));
    std::vector<uint64_t> tickets;
    for (int i = 0; i < kInFlight; ++i) {
      FillPattern(sends[i], i * 10 + comm.rank());
      const bool forward = i % 2 == 0;
      tickets.push_back(
          comm.StartExchange({forward ? Next(comm) : Previous(comm),
                              forward ? Previous(comm) : Next(comm), sends[i], recvs[i], Soon()}));
      if (i > 0 && tickets[i] <= tickets[i - 1]) return absl::InternalError("tickets descend");
    }
    Buffer elsewhere(1 << 16);
    FillPattern(elsewhere, 99);
    for (int i = kInFlight - 1; i >= 0; --i) RF_RETURN_IF_ERROR(comm.Wait(tickets[i]).status);
    for (int i = 0; i < kInFlight; ++i) {
      const int from = i % 2 == 0 ? Previous(comm) : Next(comm);
      RF_RETURN_IF_ERROR(CheckPattern(recvs[i], i * 10 + from, "received"));
      RF_RETURN_IF_ERROR(CheckPattern(sends[i], i * 10 + comm.rank(), "sent"));
    }
    return CheckPattern(elsewhere, 99, "elsewhere");
  }));
}

TEST_P(TransportTest, ThousandsOfAllGathersOfChangingSizes) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    std::vector<uint64_t> send, recv;
    for (uint64_t call = 0; call < 3000; ++call) {
      const size_t words = call % 7 * (call % 500 == 0 ? 1000 : 1);
      send.assign(words, call * 8 + comm.rank());
      recv.assign(words * comm.size(), 0);
      RF_RETURN_IF_ERROR(comm.AllGather(std::as_bytes(std::span(send)),
                                        std::as_writable_bytes(std::span(recv)), Soon()));
      for (size_t i = 0; i < recv.size(); ++i) {
        if (recv[i] != call * 8 + i / words) return absl::InternalError("wrong word gathered");
      }
    }
    return absl::OkStatus();
  }));
}

TEST_P(TransportTest, BarrierHoldsEveryRankUntilTheLast) {
  std::atomic<int> entered{0};
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    for (int i = 1; i <= 300; ++i) {
      ++entered;
      RF_RETURN_IF_ERROR(comm.Barrier(Soon()));
      if (entered < i * comm.size()) return absl::InternalError("left before all had entered");
      RF_RETURN_IF_ERROR(comm.Barrier(Soon()));
    }
    return absl::OkStatus();
  }));
}

TEST_P(PeerTest, ExchangeWithAnAbsentPeerEndsAtItsDeadline) {
  const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) return absl::OkStatus();
    Buffer send(100), recv(100);
    const Instant deadline = Clock::Real().Now() + milliseconds(20);
    const auto result = comm.Wait(comm.StartExchange({0, 0, send, recv, deadline}));
    if (Clock::Real().Now() < deadline && comm.size() == 2) {
      return absl::InternalError("gave up before the deadline");
    }
    return result.status;
  });
  EXPECT_TRUE(statuses[0].ok());
  for (int rank = 1; rank < ranks(); ++rank) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded) << statuses[rank];
  }
}

TEST_P(PeerTest, CollectiveWithAnAbsentPeerEndsAtItsDeadline) {
  for (const bool gather : {false, true}) {
    const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
      if (comm.rank() == 0) return absl::OkStatus();
      const Instant deadline = Clock::Real().Now() + milliseconds(20);
      Buffer send(10), recv(10 * comm.size());
      return gather ? comm.AllGather(send, recv, deadline) : comm.Barrier(deadline);
    });
    EXPECT_TRUE(statuses[0].ok());
    for (int rank = 1; rank < ranks(); ++rank) {
      EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded) << statuses[rank];
    }
  }
}

TEST_P(PeerTest, FailureOfOneRankFailsTheGroup) {
  // Rank 1 waits for rank 0, which never sends; the others hang on an all-gather without a
  // deadline to speak of and must be freed by rank 1's failure.
  ExpectAll(Spawn([&](Communicator& comm) -> absl::Status {
              Buffer send(8), recv(8 * comm.size());
              if (comm.rank() != 1) return comm.AllGather(send, recv, Soon());
              return comm
                  .Wait(comm.StartExchange({0, 0, send, std::span(recv).first(8),
                                            Clock::Real().Now() + milliseconds(5)}))
                  .status;
            }),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(PeerTest, ExchangeOfUnequalSizesIsDataLossOnBothSides) {
  for (const size_t sent : {63, 65}) {
    // Rank 0 sends too little or too much to rank 1; both must learn of it. The rest may be done.
    const std::vector<absl::Status> statuses = Spawn([&](Communicator& comm) -> absl::Status {
      Buffer send(comm.rank() == 0 ? sent : 64), recv(64);
      return comm.Wait(comm.StartExchange({Next(comm), Previous(comm), send, recv, Soon()})).status;
    });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDataLoss) << statuses[0];
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDataLoss) << statuses[1];
    EXPECT_THAT(std::string(statuses[1].message()), testing::HasSubstr(std::to_string(sent)));
  }
}

TEST_P(PeerTest, AllGatherOfUnequalSizesIsDataLoss) {
  ExpectAll(Spawn([&](Communicator& comm) -> absl::Status {
              const size_t bytes = comm.rank() == 1 ? 5 : 4;
              Buffer send(bytes), recv(bytes * comm.size());
              return comm.AllGather(send, recv, Soon());
            }),
            absl::StatusCode::kDataLoss);
}

// What ranks are doing when the abort comes.
enum class State { kIdle, kExchange, kQueuedExchange, kAllGather, kBarrier };

absl::Status BeIn(State state, Communicator& comm) {
  Buffer send(1000), recv(1000 * comm.size());
  const Communicator::ExchangeArgs exchange = {0, 0, send, std::span(recv).first(1000), Soon()};
  switch (state) {
    case State::kIdle:
      return absl::OkStatus();
    case State::kExchange:
      return comm.Wait(comm.StartExchange(exchange)).status;
    case State::kQueuedExchange: {
      const uint64_t first = comm.StartExchange(exchange);
      const absl::Status second = comm.Wait(comm.StartExchange(exchange)).status;
      const absl::Status status = comm.Wait(first).status;
      return status == second ? status : absl::InternalError("statuses differ");
    }
    case State::kAllGather:
      return comm.AllGather(send, recv, Soon());
    case State::kBarrier:
      return comm.Barrier(Soon());
  }
  return absl::InternalError("unknown state");
}

// Rank 0 aborts while the others are on their way into, or in, a wait for it.
TEST_P(TransportTest, AbortEndsEveryWaitAndEveryLaterCall) {
  const absl::Status first = absl::UnavailableError("the first abort");
  for (const State state : {State::kIdle, State::kExchange, State::kQueuedExchange,
                            State::kAllGather, State::kBarrier}) {
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

TEST_P(TransportTest, AbortFromAThreadThatIsNoRank) {
  const absl::Status reason = absl::CancelledError("from outside");
  std::vector<std::unique_ptr<Communicator>> ends = std::get<0>(GetParam()).make(ranks());
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

TEST_P(PeerTest, EndsMayBeDestroyedWithAnExchangeUnderWay) {
  Buffer send(100), recv(100);
  std::vector<std::unique_ptr<Communicator>> ends = std::get<0>(GetParam()).make(ranks());
  ends[1]->StartExchange({0, 0, send, recv, Soon()});
  ends.clear();
}

TEST_P(TransportTest, TwoGroupsAtOnceDoNotMeet) {
  std::vector<std::unique_ptr<Communicator>> other = std::get<0>(GetParam()).make(ranks());
  other[0]->Abort(absl::CancelledError("the other group"));
  ExpectAllOk(Spawn([](Communicator& comm) { return comm.Barrier(Soon()); }));
}

TEST(RoundHeaderTest, EveryFieldThatDiffersIsRefusedByName) {
  const RoundHeader expected = HeaderFor(5, 2, 1, 4096);
  EXPECT_TRUE(CheckRoundHeader(expected, expected).ok());
  const struct {
    const char* name;
    std::function<void(RoundHeader&)> change;
  } cases[] = {
      {"magic", [](RoundHeader& h) { h.magic ^= 1; }},
      {"version", [](RoundHeader& h) { h.version = 2; }},
      {"epoch", [](RoundHeader& h) { --h.epoch; }},
      {"step", [](RoundHeader& h) { --h.step; }},
      {"layer", [](RoundHeader& h) { ++h.layer; }},
      {"round", [](RoundHeader& h) { --h.round; }},
      {"source", [](RoundHeader& h) { ++h.source; }},
      {"bytes", [](RoundHeader& h) { h.bytes += 64; }},
  };
  for (const auto& c : cases) {
    RoundHeader got = expected;
    c.change(got);
    const absl::Status status = CheckRoundHeader(expected, got);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.name;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(c.name));
  }
  RoundHeader free_fields = expected;
  free_fields.checksum = 1;
  free_fields.stop_mask = 2;
  EXPECT_TRUE(CheckRoundHeader(expected, free_fields).ok());
}

// A clock that stands until told otherwise.
class ManualClock final : public Clock {
 public:
  Instant Now() const override {
    ++looks_;
    return Instant(Duration(ticks_.load()));
  }
  void Advance(Duration d) { ticks_ += d.count(); }
  int looks() const { return looks_; }

 private:
  std::atomic<Duration::rep> ticks_{0};
  mutable std::atomic<int> looks_{0};
};

TEST(LocalTest, DeadlinesFollowTheGroupsClock) {
  ManualClock clock;
  const auto make = [&](int ranks) { return MakeLocalGroup(ranks, clock); };
  const auto statuses = LocalRing::SpawnOver(make, 2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) {
      while (clock.looks() < 2) std::this_thread::yield();  // until the other one waits
      clock.Advance(std::chrono::hours(2));
      return absl::OkStatus();
    }
    return comm.Barrier(Instant(std::chrono::hours(1)));
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

TEST(LocalTest, DeadlinesEndThoughTheGroupsClockStandsStill) {
  ManualClock clock;
  const auto make = [&](int ranks) { return MakeLocalGroup(ranks, clock); };
  const auto statuses = LocalRing::SpawnOver(make, 2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) return absl::OkStatus();
    return comm.Barrier(Instant(milliseconds(10)));
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

}  // namespace
}  // namespace ringfill
