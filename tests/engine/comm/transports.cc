#include "tests/engine/comm/transports.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/comm/local.h"
#include "engine/comm/tcp/tcp.h"
#include "tests/engine/comm/nccl_transport.h"

namespace ringfill {
namespace {

class PlainMemory final : public TransportMemory {
 public:
  std::byte* Allocate(int, size_t bytes) override { return new std::byte[bytes](); }
  void Free(std::byte* data) override { delete[] data; }
  void Write(std::span<std::byte> to, const void* from) override {
    std::memcpy(to.data(), from, to.size());
  }
  void Read(void* to, std::span<const std::byte> from) override {
    std::memcpy(to, from.data(), from.size());
  }
};

const Transport* under_test = nullptr;

TransportMemory& Memory() { return under_test == nullptr ? HostMemory() : under_test->memory(); }

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
  static const std::vector<Transport> transports = [] {
    std::vector<Transport> all = {
        {.name = "local", .make = [](int ranks) { return MakeLocalGroup(ranks); }},
        {.name = "tcp", .make = MakeTcpGroup},
    };
    for (const Transport& transport : NcclTransports()) all.push_back(transport);
    return all;
  }();
  return transports;
}

TransportMemory& HostMemory() {
  static PlainMemory memory;
  return memory;
}

void StartTest(const Transport& transport) {
  under_test = &transport;
  transport.prepare();
}

Buffer::Buffer(int rank, size_t bytes) : data_(nullptr), size_(bytes) {
  if (bytes > 0) data_ = Memory().Allocate(rank, bytes);
}
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Buffer::~Buffer() {
  if (data_ != nullptr) Memory().Free(data_);
}

std::vector<Buffer> Buffers(const Communicator& comm, int count, size_t bytes) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < count; ++i) buffers.emplace_back(comm, bytes);
  return buffers;
}

void Write(std::span<std::byte> to, const void* from) {
  if (!to.empty()) Memory().Write(to, from);
}
void Read(void* to, std::span<const std::byte> from) {
  if (!from.empty()) Memory().Read(to, from);
}

Instant Soon() { return In(std::chrono::seconds(60)); }
Instant In(std::chrono::milliseconds from_now) { return Clock::Real().Now() + from_now; }

int Next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int Previous(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

std::span<const std::byte> Pattern(uint64_t seed, size_t bytes) {
  constexpr size_t kWindows = 4096;
  static const std::vector<std::byte> stretch = [] {
    std::vector<std::byte> made(kLargeBytes + kWindows);
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
  Write(bytes, Pattern(seed, bytes.size()).data());
}

absl::Status CheckPattern(std::span<const std::byte> bytes, uint64_t seed,
                          const std::string& what) {
  std::vector<std::byte> got(bytes.size());
  Read(got.data(), bytes);
  const std::span<const std::byte> expected = Pattern(seed, bytes.size());
  if (std::equal(got.begin(), got.end(), expected.begin())) return absl::OkStatus();
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
