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

using Buffer = std::vector<std::byte>;

struct Transport {
  const char* name;
  std::vector<std::unique_ptr<Communicator>> (*make)(int ranks);
};
const std::vector<Transport>& AllTransports();

// Sizes of messages to try. Parts of an all-gather of the largest are divided by the ranks.
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

// Tests over {transport} x {1..5 ranks}.
class TransportTest : public testing::TestWithParam<std::tuple<Transport, int>> {
 protected:
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
