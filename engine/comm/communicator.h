// How ranks talk: point-to-point exchange for the ring, all-gather for replicated tokens. Work is
// started and gives an event; every wait has a deadline; the first failure aborts the epoch on
// every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/stream/event.h"
#include "engine/stream/op_label.h"
#include "engine/stream/trace.h"

namespace ringfill {

// An exchange or all-gather under way. Completes with OK, DEADLINE_EXCEEDED, the abort's status,
// ...
class Transfer : public Event {
 public:
  // Once done: how long the bytes took to move, without waiting for `after` or for the peer.
  virtual Duration transfer_time() const = 0;
};
using TransferPtr = std::shared_ptr<Transfer>;

// One rank's end of a group. One host thread of the rank calls all of it but Abort, which any
// thread may call.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends `send` to rank `to` and receives exactly recv.size() bytes from rank `from`, on the
  // communication lane, once every event of `after` is done; returns at once. Exchanges of one rank
  // run in the order they were started. Both buffers belong to the transport until the transfer is
  // done. Either part may be empty (then it does not happen). A peer that sends another number of
  // bytes fails both with DATA_LOSS; an event of `after` that fails, fails the exchange and aborts
  // the epoch.
  struct ExchangeArgs {
    OpLabel label;
    int to = 0, from = 0;
    std::span<const std::byte> send;
    std::span<std::byte> recv;
    std::vector<EventPtr> after;
    Instant deadline;
  };
  virtual TransferPtr StartExchange(ExchangeArgs args) = 0;

  // recv: [size()] parts of send.size() bytes, part r from rank r; all ranks give equally many
  // bytes. All-gathers of one rank run in the order they were started. May do all of the work on
  // the calling thread when `after` is done already. REQUIRES: recv.size() == send.size() * size().
  struct AllGatherArgs {
    OpLabel label;
    std::span<const std::byte> send;
    std::span<std::byte> recv;
    std::vector<EventPtr> after;
    Instant deadline;
  };
  virtual TransferPtr StartAllGather(AllGatherArgs args) = 0;

  // The same for a few bytes of host memory, on transports whose buffers are elsewhere too. Returns
  // when it is done.
  virtual absl::Status GatherOnHost(std::span<const std::byte> send, std::span<std::byte> recv,
                                    Instant deadline) {
    AllGatherArgs args;
    args.label.kind = OpKind::kAllGather;
    args.label.bytes = static_cast<int64_t>(send.size());
    args.send = send;
    args.recv = recv;
    args.deadline = deadline;
    return StartAllGather(std::move(args))->Await(Instant::max());
  }

  // Returns when every rank has called it.
  virtual absl::Status Barrier(Instant deadline) {
    AllGatherArgs nothing;
    nothing.label.kind = OpKind::kAllGather;
    nothing.deadline = deadline;
    return StartAllGather(std::move(nothing))->Await(Instant::max());
  }

  // Makes every waiting and later call on every rank of the group fail with `status` until the
  // group is formed anew. The first abort wins. REQUIRES: !status.ok().
  virtual void Abort(absl::Status status) = 0;

  // Spans of the communication lane go here; null: nowhere. The buffer outlives the communicator.
  virtual void TraceTo(TraceBuffer* trace) = 0;
};

}  // namespace ringfill
