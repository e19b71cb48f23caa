#include "tests/engine/comm/transports.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/comm/local.h"
#include "engine/comm/tcp/tcp.h"

namespace ringfill {
namespace {

// Ranks of this process that talk over loopback.
std::vector<std::unique_ptr<Communicator>> MakeTcpGroup(int ranks) {
  static std::atomic<uint64_t> epoch{0};
  const Secret secret = Secret::Random();
  TcpGroupOptions options;
  options.epoch = ++epoch;
  options.secret = &secret;
  options.deadline = Soon();
  std::vector<std::unique_ptr<Listener>> listeners;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners.push_back(Listener::Bind().value());
    options.members.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<Communicator>> ends(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TcpGroupOptions own = options;
      own.rank = rank;
      ends[rank] = FormTcpGroup(*listeners[rank], own).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

}  // namespace

const std::vector<Transport>& AllTransports() {
  static const std::vector<Transport> transports = {
      {"local", [](int ranks) { return MakeLocalGroup(ranks); }},
      {"tcp", MakeTcpGroup},
  };
  return transports;
}

Instant Soon() { return In(std::chrono::seconds(60)); }
Instant In(std::chrono::milliseconds from_now) { return Clock::Real().Now() + from_now; }

int Next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int Previous(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

std::span<const std::byte> Pattern(uint64_t seed, size_t bytes) {
  constexpr size_t kWindows = 4096;
  static const Buffer stretch = [] {
    Buffer made(kLargeBytes + kWindows);
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

absl::Status CheckPattern(std::span<const std::byte> bytes, uint64_t seed,
                          const std::string& what) {
  if (bytes.empty() ||
      std::memcmp(bytes.data(), Pattern(seed, bytes.size()).data(), bytes.size()) == 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(what + " has wrong bytes");
}

Communicator::ExchangeArgs ExchangeOf(int to, int from, std::span<const std::byte> send,
                                      std::span<std::byte> recv, Instant deadline,
                                      std::vector<EventPtr> after) {
  OpLabel label;
  label.kind = OpKind::kExchange;
  label.bytes = static_cast<int64_t>(send.size());
  return {label, to, from, send, recv, std::move(after), deadline};
}

Communicator::AllGatherArgs GatherOf(std::span<const std::byte> send, std::span<std::byte> recv,
                                     Instant deadline, std::vector<EventPtr> after) {
  OpLabel label;
  label.kind = OpKind::kAllGather;
  label.bytes = static_cast<int64_t>(send.size());
  return {label, send, recv, std::move(after), deadline};
}

absl::Status Exchange(Communicator& comm, Communicator::ExchangeArgs args) {
  return comm.StartExchange(std::move(args))->Await(Instant::max());
}

absl::Status AllGather(Communicator& comm, Communicator::AllGatherArgs args) {
  return comm.StartAllGather(std::move(args))->Await(Instant::max());
}

std::shared_ptr<HostEvent> Pending() { return std::make_shared<HostEvent>(); }

EventPtr Completed(absl::Status status) {
  auto event = std::make_shared<HostEvent>();
  event->Complete(std::move(status));
  return event;
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

std::string TransportName(const testing::TestParamInfo<std::tuple<Transport, int>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::to_string(std::get<1>(info.param)) +
         "ranks";
}

}  // namespace ringfill
