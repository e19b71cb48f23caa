// The `tcp` transport: ranks in processes of their own, on one host or several, with a proven
// connection (handshake.h, frame.h) between each two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/tcp/listener.h"
#include "engine/comm/tcp/secret.h"
#include "engine/comm/tcp/socket.h"

namespace ringfill {

struct TcpGroupOptions {
  int rank = 0;
  std::vector<std::string> members;  // [ranks] "host:port" of each rank's listener
  uint64_t cluster = 0;              // see PeerClaims
  uint64_t epoch = 0;                // rises with each group that is formed
  const Secret* secret = nullptr;    // outlives the call
  Instant deadline;                  // for the whole call
  // When the caller wakes it, the call ends with CANCELLED. The call wakes it too, to end what its
  // other threads are at when it has failed for good.
  Waker* stop = nullptr;
  // A link on which nothing comes for so long, not even a beat, is dead: the epoch aborts with
  // UNAVAILABLE. The peer's first sign of life may take until `deadline`. 0: links are not watched.
  Duration silence_limit{};
  // Told of each dead link, by whichever thread moves bytes; must not block.
  std::function<void(int peer)> on_dead_link;
};

// Every rank of the epoch calls it at about the same time, with the listener that its address in
// `members` leads to; lower ranks call higher ones. Peers of older epochs and those that take us
// for another rank are turned away, those that are late are waited for. Fails for good with
// INVALID_ARGUMENT when an address is none, FAILED_PRECONDITION when a peer is at a newer epoch or
// another rank than its address says, UNAUTHENTICATED when what answers there does not know the
// secret; `missing` then gets the ranks that were called there, ascending. UNAVAILABLE or
// DEADLINE_EXCEEDED when somebody is missing (SomebodyIsMissing); `missing` then gets the ranks
// with which no connection was made. One that is missing does not keep the others from connecting.
//
// The communicator has a thread of its own, its lane, which sleeps while no transfer is under way
// but for a look at the links (mesh.h) every kBeatPeriod. An all-gather whose `after` is done
// runs on the calling thread while nothing else moves. A transfer needs nothing of ranks it
// does not exchange bytes with; one that needs a rank whose connection has closed fails with
// UNAVAILABLE naming the rank, and so aborts the epoch.
absl::StatusOr<std::unique_ptr<Communicator>> FormTcpGroup(Listener& listener,
                                                           const TcpGroupOptions& options,
                                                           std::vector<int>* missing = nullptr);
// What it failed with may pass.
bool SomebodyIsMissing(const absl::Status& status);

}  // namespace ringfill
