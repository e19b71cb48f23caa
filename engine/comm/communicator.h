// How ranks talk: point-to-point exchange for the ring, all-gather for replicated tokens. Every
// wait has a deadline; the first failure aborts the epoch on every rank.
//
// Each ring buffer starts with a RoundHeader on every transport; the receiver checks it before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"

namespace ringfill {

// 64 bytes at the start of every ring buffer.
struct RoundHeader {
  uint32_t magic = kMagic;
  uint32_t version = 1;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t round = 0;   // how many hops the buffer has made, 0 at its source
  uint32_t source = 0;  // the rank whose KV this is
  uint32_t reserved = 0;
  uint64_t bytes = 0;      // payload after the header
  uint64_t stop_mask = 0;  // bit e: the source asks to stop working on the step's chunk e
  uint64_t checksum = 0;   // 0: not enabled

  static constexpr uint32_t kMagic = 0x47524652;  // "RFRG"
};
static_assert(sizeof(RoundHeader) == 64);

// DATA_LOSS naming the field when `got` is not the buffer that was expected here (checksum and
// stop_mask are not compared).
absl::Status CheckRoundHeader(const RoundHeader& expected, const RoundHeader& got);

// One rank's end of a group. The compute lane of the rank calls all of it but Abort, which any
// thread may call.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts sending `send` to rank `to` and receiving exactly recv.size() bytes from rank `from`, on
  // the communication lane; returns at once. Exchanges of one rank run in the order they were
  // started. Both buffers belong to the transport until the matching Wait returned. A peer that
  // sends another number of bytes fails both with DATA_LOSS. Returns a ticket, ascending.
  struct ExchangeArgs {
    int to, from;
    std::span<const std::byte> send;
    std::span<std::byte> recv;
    Instant deadline;
  };
  virtual uint64_t StartExchange(const ExchangeArgs& args) = 0;
  // Waits for one exchange and returns its status: DEADLINE_EXCEEDED, the abort's status, ... Also
  // says how long the transfer itself took on the lane.
  struct ExchangeResult {
    absl::Status status;
    Duration transfer_time{};
  };
  virtual ExchangeResult Wait(uint64_t ticket) = 0;

  // recv: [size()] parts of send.size() bytes, part r from rank r; all ranks give equally many
  // bytes. Blocks. REQUIRES: recv.size() == send.size() * size().
  virtual absl::Status AllGather(std::span<const std::byte> send, std::span<std::byte> recv,
                                 Instant deadline) = 0;
  // Returns when every rank has called it.
  virtual absl::Status Barrier(Instant deadline) = 0;

  // Makes every waiting and later call on every rank of the group fail with `status` until the
  // group is formed anew. The first abort wins. REQUIRES: !status.ok().
  virtual void Abort(absl::Status status) = 0;
};

}  // namespace ringfill
