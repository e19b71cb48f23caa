// The `nccl` transport: ranks with a GPU each, in one process or in processes of their own.
//
// Transfers are queued on one stream of high priority per rank and run there in the order in which
// they were started; buffers are device memory of the rank's GPU. An event of `after` with a CUDA
// event behind it is waited for by the GPU; another holds back its transfer, and those started
// after it, on a thread of the rank. Transfers are CudaBacked. Nothing here waits for a peer on the
// caller's thread but Await, Barrier and GatherOnHost.
//
// Where this differs from what Communicator asks of transports:
// - Exchanges and all-gathers share the one lane, because two communicators at once may each keep
//   the other's kernels from a GPU. All ranks start them in the same order among themselves.
// - Bytes of a peer that sends another number of them cannot be told from the right ones: the
//   transfer ends with wrong bytes or at its deadline. The RoundHeader of ring buffers shows both.
// - transfer_time counts from when `after` was done here, so it contains the wait for a late peer.
//
// A thread per rank watches what is under way, and aborts the communicator at a deadline, at an
// error of NCCL or of the GPU, and when the group was aborted. A transfer that failed so is done
// when the GPUs of this process have let go of its buffers. Between processes an abort ends this
// rank's waits alone: others learn of it from whoever is told of the failed step, or at their
// deadlines.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"

namespace ringfill {

// FAILED_PRECONDITION when the library that the program runs with is older than it needs.
absl::Status CheckNccl();

// Names a group to be formed; made by one of its ranks and handed to all. NCCL listens for them in
// the process that made it, with a thread and a socket that last until all ranks have come: an
// attempt in which one never does keeps them for good. Whoever tries again does so slowly.
using NcclId = std::array<std::byte, 128>;
absl::StatusOr<NcclId> NewNcclId();

// For NCCL and the GPU to let go when an end goes or is aborted. Then what they use is left to them
// for as long as they take, but for the buffers of transfers, which the caller has back.
constexpr Duration kNcclEndLimit = std::chrono::seconds(10);

// Ranks 0, 1, ... of this process, rank r on CUDA device devices[r]. Ends must be destroyed
// together, as those of a local group. UNAVAILABLE, INTERNAL, RESOURCE_EXHAUSTED or
// DEADLINE_EXCEEDED when NCCL does not start.
struct NcclGroupOptions {
  Instant deadline;  // for the whole call
  // Called every few milliseconds on the thread of the call, which ends with CANCELLED when it says
  // false. Empty: never.
  std::function<bool()> while_waiting = {};
  Duration end_limit = kNcclEndLimit;
};
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> MakeNcclGroup(
    const std::vector<int>& devices, const NcclGroupOptions& options);

// One rank of a group of processes; all call it at about the same time with the same id.
struct NcclRankOptions {
  int rank = 0, ranks = 1;
  int device = 0;
  NcclId id{};
  Instant deadline;  // for the whole call
  // Asked every few milliseconds: the call ends with CANCELLED. Empty: never.
  std::function<bool()> stopped = {};
  Duration end_limit = kNcclEndLimit;
};
absl::StatusOr<std::unique_ptr<Communicator>> FormNcclRank(const NcclRankOptions& options);

}  // namespace ringfill
