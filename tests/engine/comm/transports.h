// The transports under test, and what their tests share. Another transport joins the conformance
// suite by adding its factory to AllTransports().
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/comm/communicator.h"
#include "tests/testing/local_ring.h"

namespace ringfill {

// Where the buffers of a transport lie. Any thread may call it.
class TransportMemory {
 public:
  virtual ~TransportMemory() = default;
  virtual std::byte* Allocate(int rank, size_t bytes) = 0;
  virtual void Free(std::byte* data) = 0;
  virtual void Write(std::span<std::byte> to, const void* from) = 0;
  virtual void Read(void* to, std::span<const std::byte> from) = 0;
};
TransportMemory& HostMemory();

struct Transport {
  const char* name;
  std::vector<std::unique_ptr<Communicator>> (*make)(int ranks);
  TransportMemory& (*memory)() = HostMemory;
  // Called before each test, and after each test that fails nothing on purpose: what has been
  // misused, empty if nothing.
  void (*prepare)() = [] {};
  std::string (*misuse)() = [] { return std::string(); };
  size_t large_bytes = (size_t{64} << 20) + 5;  // tried in place of kLargeBytes
  // What a transport may leave out, saying so in its header.
  bool tells_sizes = true;       // DATA_LOSS when a peer sends another number of bytes
  bool separate_lanes = true;    // an all-gather does not wait for exchanges started before
  bool times_bytes_only = true;  // transfer_time leaves out the wait for a late peer
};
const std::vector<Transport>& AllTransports();

// Memory of one rank, where the transport under test wants it; of the host before StartTest.
class Buffer {
 public:
  Buffer(int rank, size_t bytes);
  Buffer(const Communicator& comm, size_t bytes) : Buffer(comm.rank(), bytes) {}
  Buffer(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::byte* begin() const { return data_; }
  std::byte* end() const { return data_ + size_; }

 private:
  std::byte* data_;
  size_t size_;
};
std::vector<Buffer> Buffers(const Communicator& comm, int count, size_t bytes);

// Between the host and a buffer.
void Write(std::span<std::byte> to, const void* from);
void Read(void* to, std::span<const std::byte> from);

// Sizes of messages to try. Parts of an all-gather of the largest, at most this many bytes, are
// divided by the ranks.
inline constexpr size_t kLargeBytes = (size_t{64} << 20) + 5;
inline constexpr size_t kSizes[] = {0, 1, 4099, 300001, kLargeBytes};

Instant Soon();                         // a deadline that no healthy run meets
Instant In(std::chrono::milliseconds);  // from now

int Next(const Communicator& comm);
int Previous(const Communicator& comm);

// Pattern `seed` is a window of one stretch of pseudo-random bytes.
std::span<const std::byte> Pattern(uint64_t seed, size_t bytes);
void FillPattern(std::span<std::byte> bytes, uint64_t seed);
absl::Status CheckPattern(std::span<const std::byte> bytes, uint64_t seed, const std::string& what);

Communicator::ExchangeArgs ExchangeOf(int to, int from, std::span<const std::byte> send,
                                      std::span<std::byte> recv, Instant deadline = Soon(),
                                      std::vector<EventPtr> after = {});
Communicator::AllGatherArgs GatherOf(std::span<const std::byte> send, std::span<std::byte> recv,
                                     Instant deadline = Soon(), std::vector<EventPtr> after = {});
// Start one and wait for it.
absl::Status Exchange(Communicator& comm, Communicator::ExchangeArgs args);
absl::Status AllGather(Communicator& comm, Communicator::AllGatherArgs args);

std::shared_ptr<HostEvent> Pending();
EventPtr Completed(absl::Status status = absl::OkStatus());

void ExpectAllOk(const std::vector<absl::Status>& statuses);
void ExpectAll(const std::vector<absl::Status>& statuses, absl::StatusCode code);

// Says which transport is under test, and prepares it.
void StartTest(const Transport& transport);

// Tests over {transport} x {1..5 ranks}.
class TransportTest : public testing::TestWithParam<std::tuple<Transport, int>> {
 protected:
  void SetUp() override { StartTest(transport()); }
  const Transport& transport() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  std::vector<std::unique_ptr<Communicator>> Make() const {
    return std::get<0>(GetParam()).make(ranks());
  }
  std::vector<absl::Status> Spawn(const LocalRing::RankFunction& fn) const {
    return LocalRing::SpawnOver(std::get<0>(GetParam()).make, ranks(), fn);
  }
};
// What needs a peer: from 2 ranks on.
class PeerTest : public TransportTest {};

std::string TransportName(const testing::TestParamInfo<std::tuple<Transport, int>>& info);

}  // namespace ringfill
