// NCCL on the emulated devices: faults to inject and figures to assert, beside NCCL's own calls.
//
// A launch (the operations of one group on one communicator) runs in its stream and is done when
// all of its operations are, as NCCL's kernels are. Bytes move at a random time between its start
// and its end; until then a receive buffer holds junk. Stricter than NCCL: no message is buffered,
// so a send ends only with its receive. What NCCL would answer with a hang or with wrong bytes
// (unequal sizes or types, ranks that wait for each other in a circle, several streams in a group)
// hangs here too, or is refused, and is reported (emulation.h: LastReport).
//
// Ranks of one process read and write each other's buffers, as NCCL's do by default
// (NCCL_P2P_DIRECT_DISABLE): one that a peer's GPU reaches and has no access to is an illegal
// address.
//
// Communicators are non-blocking ones alone: a launch may reach its stream only some
// ncclCommGetAsyncError later, as it may in NCCL.
#pragma once

#include <cstdint>

namespace ringfill::cuda_emulation {

// Operations of communicators on `device` do not start until ReleaseNccl: a peer that is late.
// Any thread, like all here.
void HoldNccl(int device);
void ReleaseNccl(int device);

// Communicators on other devices report ncclRemoteError from now on, as they do when the process
// of a rank is gone; those on `device` do nothing any more.
void BreakNccl(int device);
// Those formed from now on are whole. REQUIRES: what BreakNccl broke is gone.
void MendNccl(int device);

// Calls of ncclCommAbort on communicators of `device` do not return until ReleaseNcclAborts.
void HangNcclAborts(int device);
void ReleaseNcclAborts(int device);

// Operations of aborted communicators on `device` do not end until EndNccl: a GPU that is slow, or
// hangs.
void LetNcclLinger(int device);
void EndNccl(int device);

// Ranks of communicators stand for processes of their own, where NCCL goes through buffers that it
// shares itself.
void SeparateNcclRanks();

// What ncclGetVersion says.
void SetNcclVersion(int version);

// Forgets faults and counts. REQUIRES: no communicator is alive.
void ResetNccl();

struct NcclCounters {
  uint64_t ids = 0;
  uint64_t launches = 0;
  uint64_t operations = 0;
  uint64_t aborted = 0;  // communicators
  uint64_t live = 0;     // communicators now
  uint64_t misuses = 0;  // reported ones
};
NcclCounters GetNcclCounters();

}  // namespace ringfill::cuda_emulation
