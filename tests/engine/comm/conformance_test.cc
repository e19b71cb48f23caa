// What every transport must do while nothing fails, over {transport} x {1..5 ranks} x {0, 1, odd,
// large} bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/stream/round_header.h"
#include "tests/engine/comm/transports.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;

class TransportSizeTest : public testing::TestWithParam<std::tuple<Transport, int, size_t>> {
 protected:
  void SetUp() override { StartTest(std::get<0>(GetParam())); }
  void TearDown() override { EXPECT_EQ(std::get<0>(GetParam()).misuse(), ""); }
  bool large() const { return std::get<2>(GetParam()) == kLargeBytes; }
  size_t bytes() const {
    return large() ? std::get<0>(GetParam()).large_bytes : std::get<2>(GetParam());
  }
  // Of one rank in an all-gather.
  size_t part_bytes() const { return large() ? bytes() / std::get<1>(GetParam()) : bytes(); }
  // Large messages are tried fewer times.
  int turns(int small) const { return large() ? 1 : small; }
  // Of one of several messages at once.
  size_t share_bytes() const { return std::min<size_t>(bytes(), (8 << 20) + 3); }
  std::vector<absl::Status> Spawn(const LocalRing::RankFunction& fn) {
    return LocalRing::SpawnOver(std::get<0>(GetParam()).make, std::get<1>(GetParam()), fn);
  }
};

std::string SizeName(const testing::TestParamInfo<std::tuple<Transport, int, size_t>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::to_string(std::get<1>(info.param)) +
         "ranks_" +
         (std::get<2>(info.param) == kLargeBytes
              ? "large"
              : std::to_string(std::get<2>(info.param)) + "bytes");
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Combine(testing::ValuesIn(AllTransports()), testing::Range(1, 6)),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(All, PeerTest,
                         testing::Combine(testing::ValuesIn(AllTransports()), testing::Range(2, 6)),
                         TransportName);
INSTANTIATE_TEST_SUITE_P(All, TransportSizeTest,
                         testing::Combine(testing::ValuesIn(AllTransports()), testing::Range(1, 6),
                                          testing::ValuesIn(kSizes)),
                         SizeName);

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

// One layer of a ring: the own shard goes around in size() - 1 rounds through two buffers, and the
// buffer that a round delivered is read ("computed on") while the next round sends it on.
absl::Status RunRing(Communicator& comm, int layer, size_t bytes) {
  const int n = comm.size();
  const std::vector<Buffer> buffers = Buffers(comm, 2, sizeof(RoundHeader) + bytes);
  const RoundHeader own = HeaderFor(layer, 0, comm.rank(), bytes);
  Write(std::span(buffers[0]).first(sizeof(own)), &own);
  FillPattern(std::span(buffers[0]).subspan(sizeof(own)), layer * 100 + comm.rank());
  for (int round = 0; round < n; ++round) {
    const Buffer& current = buffers[round % 2];
    const Buffer& incoming = buffers[(round + 1) % 2];
    const std::span<std::byte> head = std::span(current).first(sizeof(RoundHeader));
    const int source = (comm.rank() + n - round) % n;
    RoundHeader header;
    Read(&header, head);
    RF_RETURN_IF_ERROR(CheckRoundHeader(HeaderFor(layer, round, source, bytes), header));
    TransferPtr transfer;
    if (round < n - 1) {
      ++header.round;
      Write(head, &header);
      transfer = comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), current, incoming));
    }
    RF_RETURN_IF_ERROR(CheckPattern(std::span(current).subspan(sizeof(header)),
                                    layer * 100 + source, "ring payload"));
    if (transfer != nullptr) RF_RETURN_IF_ERROR(transfer->Await(Soon()));
  }
  return absl::OkStatus();
}

TEST_P(TransportSizeTest, RingDeliversEveryShardWithItsHeader) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    for (int layer = 0; layer < turns(2); ++layer)
      RF_RETURN_IF_ERROR(RunRing(comm, layer, bytes()));
    return absl::OkStatus();
  }));
}

// Every rank trades with rank r + k and r - k, for each k: all pairs, all at once. Large ones go
// both ways round.
TEST_P(TransportSizeTest, ShiftedExchangesReachEveryPair) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    const int n = comm.size();
    Buffer send(comm, bytes()), recv(comm, bytes());
    for (int shift = 0; shift < n; ++shift) {
      if (large() && shift != 1 && shift != n - 1) continue;
      const int to = (comm.rank() + shift) % n, from = (comm.rank() + n - shift) % n;
      FillPattern(send, comm.rank() * 8 + to);
      RF_RETURN_IF_ERROR(Exchange(comm, ExchangeOf(to, from, send, recv)));
      RF_RETURN_IF_ERROR(CheckPattern(recv, from * 8 + comm.rank(), "received"));
    }
    return absl::OkStatus();
  }));
}

TEST_P(TransportSizeTest, AllGatherDeliversEveryPartInRankOrder) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    const size_t bytes = part_bytes();
    Buffer send(comm, bytes), recv(comm, bytes * comm.size());
    for (int call = 0; call < turns(3); ++call) {
      FillPattern(send, call * 10 + comm.rank());
      RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(send, recv)));
      for (int peer = 0; peer < comm.size(); ++peer) {
        RF_RETURN_IF_ERROR(CheckPattern(std::span(recv).subspan(peer * bytes, bytes),
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
    const std::vector<Buffer> sends = Buffers(comm, kInFlight, share_bytes()),
                              recvs = Buffers(comm, kInFlight, share_bytes());
    std::vector<TransferPtr> transfers;
    for (int i = 0; i < kInFlight; ++i) {
      FillPattern(sends[i], i * 10 + comm.rank());
      const bool forward = i % 2 == 0;
      transfers.push_back(comm.StartExchange(ExchangeOf(forward ? Next(comm) : Previous(comm),
                                                        forward ? Previous(comm) : Next(comm),
                                                        sends[i], recvs[i])));
    }
    Buffer elsewhere(comm, 1 << 16);
    FillPattern(elsewhere, 99);
    RF_RETURN_IF_ERROR(transfers.back()->Await(Soon()));
    for (const TransferPtr& transfer : transfers) {
      if (!transfer->done()) return absl::InternalError("a later exchange overtook");
      RF_RETURN_IF_ERROR(transfer->Await(Soon()));
      if (transfer->transfer_time() < Duration(0)) return absl::InternalError("negative time");
    }
    for (int i = 0; i < kInFlight; ++i) {
      const int from = i % 2 == 0 ? Previous(comm) : Next(comm);
      RF_RETURN_IF_ERROR(CheckPattern(recvs[i], i * 10 + from, "received"));
      RF_RETURN_IF_ERROR(CheckPattern(sends[i], i * 10 + comm.rank(), "sent"));
    }
    return CheckPattern(elsewhere, 99, "elsewhere");
  }));
}

// The all-gathers are made while bytes of exchanges are on their way.
TEST_P(TransportSizeTest, ExchangesAndAllGathersAtOnce) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    Buffer send(comm, share_bytes()), recv(comm, share_bytes());
    Buffer part(comm, 100), parts(comm, 100 * comm.size());
    for (int turn = 0; turn < 3; ++turn) {
      FillPattern(send, turn * 10 + comm.rank());
      const TransferPtr transfer =
          comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), send, recv));
      for (int call = 0; call < 20; ++call) {
        FillPattern(part, turn + call * 10 + comm.rank());
        RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(part, parts)));
        for (int peer = 0; peer < comm.size(); ++peer) {
          RF_RETURN_IF_ERROR(CheckPattern(std::span(parts).subspan(peer * 100, 100),
                                          turn + call * 10 + peer, "gathered part"));
        }
      }
      RF_RETURN_IF_ERROR(transfer->Await(Soon()));
      RF_RETURN_IF_ERROR(CheckPattern(recv, turn * 10 + Previous(comm), "received"));
    }
    return absl::OkStatus();
  }));
}

TEST_P(TransportTest, ThousandsOfAllGathersOfChangingSizes) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    constexpr size_t kMostWords = 6 * 3000;
    const Buffer send_buffer(comm, kMostWords * 8), recv_buffer(comm, kMostWords * 8 * comm.size());
    std::vector<uint64_t> send, recv;
    for (uint64_t call = 0; call < 3000; ++call) {
      const size_t words = call % 7 * (call % 500 == 0 ? 3000 : 1);
      const std::span<std::byte> from = std::span(send_buffer).first(words * 8);
      const std::span<std::byte> to = std::span(recv_buffer).first(words * 8 * comm.size());
      send.assign(words, call * 8 + comm.rank());
      recv.assign(words * comm.size(), 0);
      Write(from, send.data());
      RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(from, to)));
      Read(recv.data(), to);
      for (size_t i = 0; i < recv.size(); ++i) {
        if (recv[i] != call * 8 + i / words) return absl::InternalError("wrong word gathered");
      }
    }
    return absl::OkStatus();
  }));
}

TEST_P(TransportTest, HundredsOfOutstandingExchanges) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    constexpr int kMany = 1000;
    constexpr size_t kBytes = 64;
    Buffer sends(comm, kMany * kBytes), recvs(comm, kMany * kBytes);
    std::vector<TransferPtr> transfers;
    for (int i = 0; i < kMany; ++i) {
      FillPattern(std::span(sends).subspan(i * kBytes, kBytes), i * 8 + comm.rank());
      const int shift = i % comm.size();
      transfers.push_back(comm.StartExchange(ExchangeOf(
          (comm.rank() + shift) % comm.size(), (comm.rank() + comm.size() - shift) % comm.size(),
          std::span(sends).subspan(i * kBytes, kBytes),
          std::span(recvs).subspan(i * kBytes, kBytes))));
    }
    RF_RETURN_IF_ERROR(transfers.back()->Await(Soon()));
    for (int i = 0; i < kMany; ++i) {
      RF_RETURN_IF_ERROR(transfers[i]->Await(Soon()));
      const int from = (comm.rank() + comm.size() - i % comm.size()) % comm.size();
      RF_RETURN_IF_ERROR(
          CheckPattern(std::span(recvs).subspan(i * kBytes, kBytes), i * 8 + from, "received"));
    }
    return absl::OkStatus();
  }));
}

// A half without bytes does not happen: a chain from rank 0 to the last, in which only neighbours
// meet, and an exchange of nothing that waits for nobody.
TEST_P(TransportTest, OneSidedExchangesGoWithoutTheOtherHalf) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    Buffer token(comm, 1000);
    if (comm.rank() == 0) FillPattern(token, 7);
    RF_RETURN_IF_ERROR(Exchange(comm, ExchangeOf(Next(comm), Previous(comm), {}, {})));
    if (comm.rank() > 0) {
      RF_RETURN_IF_ERROR(Exchange(comm, ExchangeOf(Previous(comm), Previous(comm), {}, token)));
    }
    if (comm.rank() < comm.size() - 1) {
      RF_RETURN_IF_ERROR(Exchange(comm, ExchangeOf(Next(comm), Next(comm), token, {})));
    }
    return CheckPattern(token, 7, "passed on");
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

// The bytes to be sent are there only when the event is.
TEST_P(TransportTest, TransfersWaitForTheirEvents) {
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    const int n = comm.size();
    Buffer send(comm, 5000), recv(comm, 5000), part(comm, 300), parts(comm, 300 * n),
        later(comm, 10), laters(comm, 10 * n);
    const auto written = Pending(), gathered = Pending();
    const TransferPtr exchange = comm.StartExchange(
        ExchangeOf(Next(comm), Previous(comm), send, recv, Soon(), {nullptr, written}));
    const TransferPtr gather =
        comm.StartAllGather(GatherOf(part, parts, Soon(), {Completed(), gathered}));
    FillPattern(later, comm.rank());
    const TransferPtr behind = comm.StartAllGather(GatherOf(later, laters));
    if (exchange->Await(In(milliseconds(10))).code() != absl::StatusCode::kDeadlineExceeded ||
        exchange->done() || gather->done() || behind->done()) {
      return absl::InternalError("did not wait");
    }
    const auto finish_gathers = [&]() -> absl::Status {
      FillPattern(part, 10 + comm.rank());
      gathered->Complete(absl::OkStatus());
      RF_RETURN_IF_ERROR(gather->Await(Soon()));
      return behind->Await(Soon());
    };
    if (transport().separate_lanes) RF_RETURN_IF_ERROR(finish_gathers());
    FillPattern(send, 20 + comm.rank());
    written->Complete(absl::OkStatus());
    RF_RETURN_IF_ERROR(exchange->Await(Soon()));
    if (!transport().separate_lanes) RF_RETURN_IF_ERROR(finish_gathers());
    RF_RETURN_IF_ERROR(CheckPattern(recv, 20 + Previous(comm), "received"));
    for (int peer = 0; peer < n; ++peer) {
      RF_RETURN_IF_ERROR(
          CheckPattern(std::span(parts).subspan(peer * 300, 300), 10 + peer, "part"));
      RF_RETURN_IF_ERROR(CheckPattern(std::span(laters).subspan(peer * 10, 10), peer, "later"));
    }
    return absl::OkStatus();
  }));
}

TEST_P(TransportTest, TracesItsLane) {
  std::vector<TraceBuffer> traces(ranks());
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    TraceBuffer& trace = traces[comm.rank()];
    Buffer send(comm, 100), recv(comm, 100), parts(comm, 100 * comm.size());
    RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(send, parts)));
    comm.TraceTo(&trace);
    RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(send, parts)));
    trace.Enable(true);
    RF_RETURN_IF_ERROR(Exchange(comm, ExchangeOf(Next(comm), Previous(comm), send, recv)));
    RF_RETURN_IF_ERROR(AllGather(comm, GatherOf(send, parts)));
    comm.TraceTo(nullptr);
    return AllGather(comm, GatherOf(send, parts));
  }));
  for (TraceBuffer& trace : traces) {
    const std::vector<TraceSpan> spans = trace.Take();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].label.kind, OpKind::kExchange);
    EXPECT_EQ(spans[1].label.kind, OpKind::kAllGather);
    for (const TraceSpan& span : spans) {
      EXPECT_EQ(span.lane, TraceLane::kComm);
      EXPECT_EQ(span.label.bytes, 100);
      EXPECT_GT(span.begin, Instant());
      EXPECT_LE(span.begin, span.end);
    }
  }
}

// A rank that is late must not show as time that the bytes took.
TEST_P(PeerTest, TransferTimeLeavesOutTheWaitForAPeer) {
  if (!transport().times_bytes_only) GTEST_SKIP() << transport().name << " cannot tell them apart";
  std::atomic<int> ready{0};
  ExpectAllOk(Spawn([&](Communicator& comm) -> absl::Status {
    Buffer send(comm, 100), recv(comm, 100), parts(comm, 100 * comm.size());
    const auto late = Pending();
    std::vector<EventPtr> after;
    if (comm.rank() == 0) after.push_back(late);
    const TransferPtr exchange =
        comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), send, recv, Soon(), after));
    if (comm.rank() == 0) {
      while (ready < comm.size() - 1) std::this_thread::yield();
      if (exchange->Await(In(milliseconds(200))).ok()) return absl::InternalError("did not wait");
      late->Complete(absl::OkStatus());
    }
    ++ready;
    RF_RETURN_IF_ERROR(exchange->Await(Soon()));
    if (exchange->transfer_time() > milliseconds(150)) return absl::InternalError("counts waiting");
    const auto later = Pending();
    const TransferPtr gather = comm.StartAllGather(GatherOf(
        send, parts, Soon(),
        comm.rank() == 0 ? std::vector<EventPtr>{later} : std::vector<EventPtr>{Completed()}));
    if (comm.rank() == 0) {
      if (gather->Await(In(milliseconds(200))).ok()) return absl::InternalError("did not wait");
      later->Complete(absl::OkStatus());
    }
    RF_RETURN_IF_ERROR(gather->Await(Soon()));
    if (gather->transfer_time() > milliseconds(150)) return absl::InternalError("counts waiting");
    return absl::OkStatus();
  }));
}

TEST_P(TransportTest, TwoGroupsAtOnceDoNotMeet) {
  std::vector<std::unique_ptr<Communicator>> other = Make();
  other[0]->Abort(absl::CancelledError("the other group"));
  ExpectAllOk(Spawn([](Communicator& comm) { return comm.Barrier(Soon()); }));
}

}  // namespace
}  // namespace ringfill
