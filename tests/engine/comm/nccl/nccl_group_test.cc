// The nccl transport alone, over emulated GPUs and seeds: order among streams without the host,
// peers that are late, lost or never come, and groups that are formed again.
#include "engine/comm/nccl/nccl_group.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/compute/cuda/cuda_event.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/nccl/nccl_emulation.h"
#include "tests/engine/comm/nccl_transport.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kSeeds = 20;

std::vector<std::unique_ptr<Communicator>> MakeGroup(int ranks, Instant deadline = Soon()) {
  std::vector<int> devices(static_cast<size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  return MakeNcclGroup(devices, {.deadline = deadline}).value();
}

void ResetEmulation(uint64_t seed, int devices = 4, bool peers = true) {
  cuda_emulation::Options options;
  options.devices = devices;
  options.seed = seed;
  options.peers = peers;
  cuda_emulation::Reset(options);
  cuda_emulation::ResetNccl();
}

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    StartTest(transport_);
    ResetEmulation(1);
  }
  void TearDown() override {
    EXPECT_EQ(cuda_emulation::GetNcclCounters().live, 0u) << "communicators are left";
  }
  const Transport transport_ = NcclTransports().front();
};

// A stream that stands for a rank's compute.
class ComputeStream {
 public:
  explicit ComputeStream(int device) : device_(device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~ComputeStream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  cudaStream_t get() const { return stream_; }
  void Set(const Buffer& to, int value) {
    EXPECT_EQ(cudaMemsetAsync(to.data(), value, to.size(), stream_), cudaSuccess);
  }
  void Copy(const Buffer& to, const Buffer& from) {
    EXPECT_EQ(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
  }
  void WaitFor(const EventPtr& event) {
    const cudaEvent_t cuda_event = CudaEventOf(event);
    ASSERT_NE(cuda_event, nullptr) << "the transfer is not on the GPU";
    EXPECT_EQ(cudaStreamWaitEvent(stream_, cuda_event, 0), cudaSuccess);
  }
  EventPtr Record();
  void Synchronize() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  const int device_;
  cudaStream_t stream_ = nullptr;
};

class ComputeEvent final : public Event, public CudaBacked {
 public:
  explicit ComputeEvent(cudaStream_t stream)
      : handle_(CudaEventHandle::Make(CudaEventHandle::Timing::kOff).value()) {
    EXPECT_EQ(cudaEventRecord(handle_.get(), stream), cudaSuccess);
  }
  absl::Status Await(Instant deadline) override { return AwaitCudaEvent(handle_.get(), deadline); }
  bool done() const override { return cudaEventQuery(handle_.get()) == cudaSuccess; }
  cudaEvent_t cuda_event() const override { return handle_.get(); }

 private:
  const CudaEventHandle handle_;
};

EventPtr ComputeStream::Record() {
  EXPECT_EQ(cudaSetDevice(device_), cudaSuccess);
  return std::make_shared<ComputeEvent>(stream_);
}

bool AllAre(const Buffer& buffer, int value) {
  std::vector<std::byte> got(buffer.size());
  Read(got.data(), buffer);
  return std::all_of(got.begin(), got.end(),
                     [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

// Written by compute, sent, received, used by compute, and written again: only events order it, and
// nobody waits on the host before the end.
absl::Status OrderedRounds(Communicator& comm) {
  constexpr int kRounds = 4;
  ComputeStream compute(comm.rank());
  const Buffer send(comm, 1000), recv(comm, 1000);
  const std::vector<Buffer> results = Buffers(comm, kRounds, 1000);
  for (int round = 0; round < kRounds; ++round) {
    compute.Set(send, round * 10 + comm.rank());
    Communicator::ExchangeArgs args =
        ExchangeOf(Next(comm), Previous(comm), send, recv, Soon(), {compute.Record()});
    const TransferPtr transfer = comm.StartExchange(std::move(args));
    compute.WaitFor(transfer);
    compute.Copy(results[static_cast<size_t>(round)], recv);
  }
  compute.Synchronize();
  for (int round = 0; round < kRounds; ++round) {
    if (!AllAre(results[static_cast<size_t>(round)], round * 10 + Previous(comm))) {
      comm.Abort(absl::InternalError("round " + std::to_string(round) + " has wrong bytes"));
    }
  }
  return comm.Barrier(Soon());
}

// What the second sends is what the first brings.
absl::Status OneAfterTheOther(Communicator& comm) {
  ComputeStream compute(comm.rank());
  const Buffer mine(comm, 500), next(comm, 500), last(comm, 500);
  compute.Set(mine, comm.rank() + 1);
  const TransferPtr first = comm.StartExchange(
      ExchangeOf(Next(comm), Previous(comm), mine, next, Soon(), {compute.Record()}));
  const TransferPtr second =
      comm.StartExchange(ExchangeOf(Next(comm), Previous(comm), next, last, Soon(), {first}));
  RF_RETURN_IF_ERROR(second->Await(Soon()));
  const int from = (comm.rank() + 2 * (comm.size() - 1)) % comm.size();
  if (!AllAre(last, from + 1)) comm.Abort(absl::InternalError("wrong bytes"));
  return comm.Barrier(Soon());
}

TEST_F(NcclTest, ATransferMayComeAfterAnotherOne) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ResetEmulation(seed);
    ExpectAllOk(LocalRing::SpawnOver([](int n) { return MakeGroup(n); }, 3, OneAfterTheOther));
  }
}

TEST_F(NcclTest, EventsAloneOrderComputeAndTransfers) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetEmulation(seed);
    ExpectAllOk(LocalRing::SpawnOver([](int n) { return MakeGroup(n); }, 3, OrderedRounds));
    EXPECT_EQ(cuda_emulation::LastReport(), "");
    EXPECT_EQ(cuda_emulation::GetNcclCounters().aborted, 3u) << "one for each end of the group";
  }
}

// NCCL moves bytes through the host then.
TEST_F(NcclTest, GpusThatDoNotReachEachOtherAreAGroupToo) {
  ResetEmulation(1, 4, false);
  ExpectAllOk(LocalRing::SpawnOver([](int n) { return MakeGroup(n); }, 3, OrderedRounds));
}

TEST_F(NcclTest, TransferBehindAHostEventIsOnTheGpuOnlyThen) {
  auto ends = MakeGroup(1);
  const Buffer send(0, 10), recv(0, 10);
  const auto host = Pending();
  const TransferPtr transfer = ends[0]->StartExchange(ExchangeOf(0, 0, send, recv, Soon(), {host}));
  EXPECT_EQ(CudaEventOf(transfer), nullptr);
  host->Complete(absl::OkStatus());
  EXPECT_TRUE(transfer->Await(Soon()).ok());
  EXPECT_NE(CudaEventOf(transfer), nullptr);
  EXPECT_EQ(CudaEventOf(host), nullptr);
}

// Its GPU does nothing for a while; nobody fails, and nothing arrives before.
TEST_F(NcclTest, LatePeerIsWaitedFor) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetEmulation(seed);
    auto ends = MakeGroup(3);
    std::vector<Buffer> sends, recvs;
    std::vector<TransferPtr> transfers;
    cuda_emulation::HoldNccl(1);
    for (int r = 0; r < 3; ++r) {
      sends.emplace_back(r, 500);
      recvs.emplace_back(r, 500);
      FillPattern(sends.back(), static_cast<uint64_t>(r));
      transfers.push_back(ends[static_cast<size_t>(r)]->StartExchange(
          ExchangeOf((r + 1) % 3, (r + 2) % 3, sends.back(), recvs.back())));
    }
    for (const TransferPtr& transfer : transfers) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(transfer->Await(In(milliseconds(2)))));
    }
    cuda_emulation::ReleaseNccl(1);
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(transfers[static_cast<size_t>(r)]->Await(Soon()).ok());
      EXPECT_TRUE(CheckPattern(recvs[static_cast<size_t>(r)], static_cast<uint64_t>((r + 2) % 3),
                               "received")
                      .ok());
    }
  }
}

// What every rank of a group of three ends with when all have started an exchange, and then `fault`
// happens.
std::vector<absl::Status> ExchangeUnder(
    const std::vector<std::unique_ptr<Communicator>>& ends, Instant deadline,
    void (*fault)() = [] {}) {
  std::vector<absl::Status> statuses;
  std::vector<Buffer> buffers;
  std::vector<TransferPtr> transfers;
  for (int r = 0; r < 3; ++r) {
    buffers.emplace_back(r, 20);
    const std::span<std::byte> all(buffers.back());
    transfers.push_back(ends[static_cast<size_t>(r)]->StartExchange(
        ExchangeOf((r + 1) % 3, (r + 2) % 3, all.first(10), all.last(10), deadline)));
  }
  fault();
  for (const TransferPtr& transfer : transfers) statuses.push_back(transfer->Await(Instant::max()));
  return statuses;
}

TEST_F(NcclTest, PeerThatNeverComesEndsAtTheDeadlineNamingWhatWaited) {
  auto ends = MakeGroup(3);
  cuda_emulation::HoldNccl(1);
  const std::vector<absl::Status> statuses = ExchangeUnder(ends, In(milliseconds(20)));
  ExpectAll(statuses, absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("an exchange (10 bytes to rank"));
  EXPECT_EQ(cuda_emulation::GetNcclCounters().aborted, 3u);
}

TEST_F(NcclTest, LostProcessOfAPeerIsUnavailable) {
  auto ends = MakeGroup(3);
  cuda_emulation::HoldNccl(1);
  const Instant start = Clock::Real().Now();
  const std::vector<absl::Status> statuses =
      ExchangeUnder(ends, Soon(), [] { cuda_emulation::BreakNccl(1); });
  ExpectAll(statuses, absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("remote process exited"));
  EXPECT_LT(Clock::Real().Now() - start, seconds(30));
}

TEST_F(NcclTest, DeviceThatDiesEndsTheGroup) {
  auto ends = MakeGroup(3);
  cuda_emulation::HoldNccl(1);
  const std::vector<absl::Status> statuses =
      ExchangeUnder(ends, Soon(), [] { cuda_emulation::KillDevice(1); });
  ExpectAll(statuses, absl::StatusCode::kInternal);
  ends.clear();
  ResetEmulation(2);
}

// NCCL, cuBLASLt and launches of kernels take an error that is left for one of their own.
TEST_F(NcclTest, WaitingLeavesNoErrorBehind) {
  auto ends = MakeGroup(2);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  cuda_emulation::HoldNccl(1);
  TraceBuffer trace;
  trace.Enable(true);
  ends[0]->TraceTo(&trace);
  const Buffer send(0, 10), recv(0, 10);
  const std::vector<TransferPtr> transfers = {ends[0]->StartExchange(ExchangeOf(1, 1, send, recv)),
                                              ends[0]->StartExchange(ExchangeOf(1, 1, send, recv))};
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "queueing while the stream is busy";
  EXPECT_FALSE(transfers[0]->done());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "asking";
  ends[0]->Abort(absl::CancelledError("enough"));
  EXPECT_TRUE(absl::IsCancelled(transfers[1]->Await(Soon())));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "waiting";
}

// What NCCL opens for an id stays until all ranks have come.
TEST_F(NcclTest, GroupWhoseBuffersDoNotFitAsksForNoId) {
  cuda_emulation::LimitMemory(1, 100);
  const auto group = MakeNcclGroup({0, 1, 2}, {.deadline = Soon()});
  EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted) << group.status();
  EXPECT_EQ(cuda_emulation::GetNcclCounters().ids, 0u);
}

size_t FreeBytes(int device) {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

// What was left behind on the device has ended, and what it held is free.
bool EventuallyFree(int device, size_t bytes) {
  const Instant until = In(std::chrono::minutes(1));
  while (FreeBytes(device) < bytes || cuda_emulation::GetNcclCounters().live > 0) {
    if (Clock::Real().Now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Of an end that is about to hang: its test waits for so long.
constexpr Duration kShortEnd = milliseconds(50);

// Ranks 0 and 1, each as a process of its own.
std::vector<std::unique_ptr<Communicator>> MakePairWhoseFirstHangs() {
  cuda_emulation::SeparateNcclRanks();
  const NcclId id = NewNcclId().value();
  std::vector<std::unique_ptr<Communicator>> ends(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      NcclRankOptions options{.rank = r, .ranks = 2, .device = r, .id = id, .deadline = Soon()};
      if (r == 0) options.end_limit = kShortEnd;
      ends[static_cast<size_t>(r)] = FormNcclRank(options).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// What a test holds back on device 0: NCCL's call, or the kernels of its GPU.
struct Hang {
  const char* name;
  void (*begin)(int device);
  void (*end)(int device);
};
constexpr Hang kHangs[] = {
    {"call", cuda_emulation::HangNcclAborts, cuda_emulation::ReleaseNcclAborts},
    {"kernels", cuda_emulation::LetNcclLinger, cuda_emulation::EndNccl}};

// The rank goes on without it, and what it uses is freed when it comes back.
TEST_F(NcclTest, AbortThatHangsIsLeftBehind) {
  for (const Hang& hang : kHangs) {
    SCOPED_TRACE(hang.name);
    const size_t free_at_first = FreeBytes(0);
    auto ends = MakePairWhoseFirstHangs();
    const size_t free_when_formed = FreeBytes(0);
    const Buffer send(0, 10), recv(0, 10);
    const TransferPtr transfer = ends[0]->StartExchange(ExchangeOf(1, 1, send, recv));
    EXPECT_TRUE(absl::IsDeadlineExceeded(transfer->Await(In(milliseconds(5)))));
    hang.begin(0);
    ends[0]->Abort(absl::CancelledError("enough"));
    EXPECT_TRUE(absl::IsCancelled(transfer->Await(Soon())));
    EXPECT_LE(FreeBytes(0), free_when_formed);
    ends[0].reset();
    EXPECT_LE(FreeBytes(0), free_when_formed) << "still in use";
    hang.end(0);
    ends.clear();
    EXPECT_TRUE(EventuallyFree(0, free_at_first - send.size() - recv.size()));
  }
}

TEST_F(NcclTest, EndWithoutFailureThatHangsIsLeftBehindToo) {
  const size_t free_at_first = FreeBytes(0);
  auto ends = MakePairWhoseFirstHangs();
  cuda_emulation::HangNcclAborts(0);
  ends[0].reset();
  EXPECT_LT(FreeBytes(0), free_at_first) << "still in use";
  cuda_emulation::ReleaseNcclAborts(0);
  ends.clear();
  EXPECT_TRUE(EventuallyFree(0, free_at_first));
}

// Kernels of an aborted transfer use the buffers of both ends for a while longer.
TEST_F(NcclTest, BuffersAreBackWhenAllGpusOfTheProcessLetGo) {
  for (const int lingers : {0, 1}) {
    auto ends = MakeGroup(3);
    const Buffer send(0, 10), recv(0, 10), theirs(1, 10);
    const std::vector<TransferPtr> transfers = {
        ends[0]->StartExchange(ExchangeOf(1, 1, send, recv)),
        ends[1]->StartExchange(ExchangeOf(2, 2, theirs, theirs))};
    for (const TransferPtr& transfer : transfers) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(transfer->Await(In(milliseconds(5)))));
    }
    cuda_emulation::LetNcclLinger(lingers);
    ends[0]->Abort(absl::CancelledError("enough"));
    EXPECT_TRUE(absl::IsDeadlineExceeded(transfers[0]->Await(In(milliseconds(30)))));
    cuda_emulation::EndNccl(lingers);
    EXPECT_TRUE(absl::IsCancelled(transfers[0]->Await(Soon())));
  }
}

// CUDA may wait for all GPUs before it frees anything, which each end would find out for itself.
TEST_F(NcclTest, EndsOfOneProcessWaitForAGpuThatHangsOnce) {
  constexpr Duration kLimit = seconds(3);
  const size_t free_at_first = FreeBytes(1);
  auto ends = MakeNcclGroup({0, 1, 2, 3}, {.deadline = Soon(), .end_limit = kLimit}).value();
  const Buffer send(0, 10), recv(0, 10);
  const TransferPtr transfer = ends[0]->StartExchange(ExchangeOf(1, 1, send, recv));
  EXPECT_TRUE(absl::IsDeadlineExceeded(transfer->Await(In(milliseconds(5)))));
  cuda_emulation::LetNcclLinger(0);
  const Instant start = Clock::Real().Now();
  ends.clear();
  EXPECT_LT(Clock::Real().Now() - start, 3 * kLimit);
  cuda_emulation::EndNccl(0);
  EXPECT_TRUE(EventuallyFree(1, free_at_first));
}

TEST_F(NcclTest, GroupIsFormedAgainOfTheRestAfterAnAbort) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto ends = MakeGroup(3);
    ends[0]->Abort(absl::CancelledError("enough"));
    EXPECT_TRUE(absl::IsCancelled(ends[2]->Barrier(Soon())));
    ends.clear();
    auto rest = MakeNcclGroup({2, 0}, {.deadline = Soon()});
    ASSERT_TRUE(rest.ok()) << rest.status();
    std::thread other([&] { EXPECT_TRUE((*rest)[1]->Barrier(Soon()).ok()); });
    EXPECT_TRUE((*rest)[0]->Barrier(Soon()).ok());
    other.join();
  }
}

// As ranks of processes do it: one makes the id, each forms its own end.
TEST_F(NcclTest, RanksFormAGroupFromAnIdThatOneMade) {
  const NcclId id = NewNcclId().value();
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      auto end = FormNcclRank({.rank = r, .ranks = 3, .device = r, .id = id, .deadline = Soon()});
      statuses[static_cast<size_t>(r)] = end.ok() ? (*end)->Barrier(Soon()) : end.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectAllOk(statuses);
}

// What a rank has left when it lost all others, for as long as one transport serves all sizes.
TEST_F(NcclTest, OneRankTalksToItself) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ResetEmulation(seed);
    const auto ends = MakeNcclGroup({static_cast<int>(seed % 4)}, {.deadline = Soon()}).value();
    const int64_t mine = 7;
    int64_t got = 0;
    ASSERT_TRUE(ends[0]
                    ->GatherOnHost(std::as_bytes(std::span(&mine, 1)),
                                   std::as_writable_bytes(std::span(&got, 1)), Soon())
                    .ok());
    EXPECT_EQ(got, mine);
    EXPECT_TRUE(ends[0]->Barrier(Soon()).ok());
  }
}

TEST_F(NcclTest, JoiningThatHangsWhenItIsGivenUpIsLeftBehind) {
  const size_t free_at_first = FreeBytes(0);
  cuda_emulation::HangNcclAborts(0);
  const auto end = FormNcclRank({.rank = 0,
                                 .ranks = 2,
                                 .device = 0,
                                 .id = NewNcclId().value(),
                                 .deadline = In(milliseconds(20)),
                                 .end_limit = kShortEnd});
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDeadlineExceeded) << end.status();
  EXPECT_LT(FreeBytes(0), free_at_first) << "still in use";
  cuda_emulation::ReleaseNcclAborts(0);
  EXPECT_TRUE(EventuallyFree(0, free_at_first));
}

TEST_F(NcclTest, GpuThatGivesNoMemoryEndsFormingAtTheDeadline) {
  const size_t free_at_first = FreeBytes(1);
  cuda_emulation::HangAllocations(1);
  const NcclId id = NewNcclId().value();
  for (const absl::Status& status :
       {MakeNcclGroup({0, 1}, {.deadline = In(milliseconds(20))}).status(),
        FormNcclRank(
            {.rank = 1, .ranks = 2, .device = 1, .id = id, .deadline = In(milliseconds(20))})
            .status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("GPU 1 gave no memory"));
  }
  cuda_emulation::ReleaseAllocations(1);
  EXPECT_TRUE(EventuallyFree(1, free_at_first));
}

TEST_F(NcclTest, RankThatDoesNotJoinEndsAtTheDeadline) {
  const NcclId id = NewNcclId().value();
  const auto end = FormNcclRank(
      {.rank = 0, .ranks = 2, .device = 0, .id = id, .deadline = In(milliseconds(20))});
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDeadlineExceeded) << end.status();
  EXPECT_THAT(std::string(end.status().message()), HasSubstr("not all of 2 ranks joined"));
}

TEST_F(NcclTest, FormingEndsWhenToldTo) {
  const NcclId id = NewNcclId().value();
  const auto end = FormNcclRank(
      {.rank = 0, .ranks = 2, .device = 0, .id = id, .deadline = Instant::max(), .stopped = [] {
         return true;
       }});
  EXPECT_EQ(end.status().code(), absl::StatusCode::kCancelled) << end.status();
}

// All have joined, and one does not take part in what connects them.
TEST_F(NcclTest, MeetingEndsWhenToldTo) {
  const NcclId id = NewNcclId().value();
  cuda_emulation::HoldNccl(1);
  const Instant stop_at = In(milliseconds(100));
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      statuses[static_cast<size_t>(r)] =
          FormNcclRank({.rank = r,
                        .ranks = 2,
                        .device = r,
                        .id = id,
                        .deadline = Instant::max(),
                        .stopped = [=] { return Clock::Real().Now() > stop_at; }})
              .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  cuda_emulation::ReleaseNccl(1);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST_F(NcclTest, WhoeverFormsAGroupIsServedMeanwhileAndMayStop) {
  cuda_emulation::HoldNccl(1);
  int calls = 0;
  const auto group = MakeNcclGroup(
      {0, 1}, {.deadline = Instant::max(), .while_waiting = [&calls] { return ++calls < 5; }});
  EXPECT_EQ(group.status().code(), absl::StatusCode::kCancelled) << group.status();
  EXPECT_EQ(calls, 5);
  cuda_emulation::ReleaseNccl(1);
}

TEST_F(NcclTest, NobodyIsToldToStopOnceTheGroupHasFormed) {
  const NcclId id = NewNcclId().value();
  std::atomic<bool> stop{false};
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto end = FormNcclRank(
          {.rank = r, .ranks = 2, .device = r, .id = id, .deadline = Soon(), .stopped = [&stop] {
             return stop.load();
           }});
      absl::Status& status = statuses[static_cast<size_t>(r)];
      status = end.status();
      for (int i = 0; i < 5 && status.ok(); ++i) {
        status = (*end)->Barrier(Soon());
        stop = true;  // both have formed
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectAllOk(statuses);
}

TEST_F(NcclTest, AnOlderLibraryIsRefusedNamingBothVersions) {
  EXPECT_TRUE(CheckNccl().ok());
  for (const auto& [code, name] : {std::pair{22406, "2.24.6"}, {2708, "2.7.8"}}) {
    cuda_emulation::SetNcclVersion(code);
    for (const absl::Status& status : {CheckNccl(), NewNcclId().status(),
                                       MakeNcclGroup({0, 1}, {.deadline = Soon()}).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("NCCL 2.25.0 or newer"), HasSubstr(name)));
    }
  }
  cuda_emulation::SetNcclVersion(22501);
  EXPECT_TRUE(CheckNccl().ok());
}

TEST_F(NcclTest, TwoRanksOnOneDeviceAreRefused) {
  cuda_emulation::SetQuiet(true);
  const auto group = MakeNcclGroup({1, 1}, {.deadline = Soon()});
  cuda_emulation::SetQuiet(false);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kInternal) << group.status();
  EXPECT_THAT(std::string(group.status().message()), HasSubstr("two ranks use device 1"));
}

TEST_F(NcclTest, HostDataIsGatheredThroughTheDevice) {
  ExpectAllOk(LocalRing::SpawnOver([](int n) { return MakeGroup(n); }, 3,
                                   [](Communicator& comm) -> absl::Status {
                                     for (const size_t bytes : {1, 40000}) {
                                       std::vector<std::byte> mine(
                                           bytes, static_cast<std::byte>(comm.rank()));
                                       std::vector<std::byte> all(3 * bytes);
                                       RF_RETURN_IF_ERROR(comm.GatherOnHost(mine, all, Soon()));
                                       for (size_t i = 0; i < all.size(); ++i) {
                                         if (all[i] != static_cast<std::byte>(i / bytes))
                                           return absl::InternalError("wrong");
                                       }
                                     }
                                     return absl::OkStatus();
                                   }));
}

}  // namespace
}  // namespace ringfill
