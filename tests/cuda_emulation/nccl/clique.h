// The communicators of one unique id, and which operations of their ranks meet.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tests/cuda_emulation/streams/task.h"

namespace ringfill::cuda_emulation {

// As it was called.
struct NcclOperation {
  enum class Kind { kSend, kRecv, kAllGather };
  Kind kind = Kind::kSend;
  int peer = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  int type = 0;
  size_t bytes = 0;  // of one part
};

// What moves bytes: a send with its receive, or one all-gather.
struct Meeting {
  enum class State { kWaiting, kReady, kMoving, kDone, kMismatched };
  State state = State::kWaiting;
  std::vector<int> rank;            // [2] sender and receiver, or [ranks]
  std::vector<NcclOperation> part;  // of rank[i], once it is there
  std::vector<bool> there;
};

// Thread-safe. Locked inside the runtime's lock, never the other way round.
class Clique : public std::enable_shared_from_this<Clique> {
 public:
  explicit Clique(int ranks) : members_(static_cast<size_t>(ranks)) {}

  int ranks();
  // Why the rank cannot be let in; empty when it is.
  std::string Join(int rank, int device);
  bool complete();
  std::vector<int> devices();
  // Aborted or its device lost: its operations end, done or not, its peers' never.
  void Leave(int rank);
  // A task for the operations of one launch of `rank`.
  TaskFactory MakeLaunch(int rank, std::vector<NcclOperation> operations);

 private:
  friend class LaunchTask;
  using MeetingPtr = std::shared_ptr<Meeting>;
  using Pair = std::pair<int, int>;  // sender, receiver
  struct Member {
    int device = -1;
    bool left = false;
    size_t gathers = 0;               // reached
    std::vector<MeetingPtr> running;  // of the launch that its stream has reached
  };

  Member& At(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return members_[static_cast<size_t>(rank)];
  }
  // The operation's meeting, with it there.
  MeetingPtr Enter(int rank, const NcclOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MeetingPtr MeetPeer(int rank, const NcclOperation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MeetingPtr MeetAll(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ranks that wait for each other in a circle through `rank`, empty when there is none.
  std::vector<int> Circle(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FindCircle(int start, std::vector<int>& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  // Without their other half.
  std::map<Pair, std::deque<MeetingPtr>> sends_ ABSL_GUARDED_BY(mutex_);
  std::map<Pair, std::deque<MeetingPtr>> recvs_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, MeetingPtr> gathers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ringfill::cuda_emulation
