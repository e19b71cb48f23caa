#include "tests/cuda_emulation/nccl/clique.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/nccl/faults.h"
#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {
namespace {

using Kind = NcclOperation::Kind;
using State = Meeting::State;

std::string Name(Kind kind) {
  return kind == Kind::kSend ? "send" : kind == Kind::kRecv ? "receive" : "all-gather";
}

std::string Describe(int rank, const NcclOperation& o) {
  return "rank " + std::to_string(rank) + "'s " + Name(o.kind) + " of " + std::to_string(o.count) +
         " elements of type " + std::to_string(o.type);
}

// Among the parts of a meeting.
size_t PlaceOf(int rank, Kind kind) {
  if (kind == Kind::kSend) return 0;
  if (kind == Kind::kRecv) return 1;
  return static_cast<size_t>(rank);
}

bool Matches(const NcclOperation& a, const NcclOperation& b) {
  return a.count == b.count && a.type == b.type;
}

void Move(const Meeting& meeting) {
  if (meeting.part[0].kind != Kind::kAllGather) {
    std::memmove(meeting.part[1].to, meeting.part[0].from, meeting.part[0].bytes);
    return;
  }
  for (const NcclOperation& receiver : meeting.part) {
    for (size_t r = 0; r < meeting.part.size(); ++r) {
      const NcclOperation& sender = meeting.part[r];
      std::memmove(receiver.to + r * sender.bytes, sender.from, sender.bytes);
    }
  }
}

}  // namespace

class LaunchTask final : public Task {
 public:
  LaunchTask(std::shared_ptr<Clique> clique, int rank, std::vector<NcclOperation> operations,
             uint64_t seed)
      : clique_(std::move(clique)),
        rank_(rank),
        operations_(std::move(operations)),
        random_(seed) {}

  bool Poll() override;
  Outcome Run() override;
  void Drop() override { clique_->Leave(rank_); }
  std::vector<int> devices() const override { return clique_->devices(); }
  const char* name() const override { return "NCCL operations"; }

 private:
  bool Has(State state) const {
    return std::any_of(meetings_.begin(), meetings_.end(),
                       [state](const auto& m) { return m->state == state; });
  }
  bool AllDone() const {
    return std::all_of(meetings_.begin(), meetings_.end(),
                       [](const auto& m) { return m->state == State::kDone; });
  }
  std::string CheckBuffers(int device) const;
  // The device among this operation's peers that reaches memory of `device` but not this.
  int Excluded(int device, const NcclOperation& operation, const void* p) const;
  Outcome Reach();
  void MoveOne();

  const std::shared_ptr<Clique> clique_;
  const int rank_;
  const std::vector<NcclOperation> operations_;
  Random random_;
  // Guarded by the clique's lock.
  bool reached_ = false;
  std::vector<Clique::MeetingPtr> meetings_;
};

bool LaunchTask::Poll() {
  MutexLock lock(&clique_->mutex_);
  const Clique::Member& self = clique_->At(rank_);
  if (self.left) return !Has(State::kMoving) && !NcclFaults::Get().Lingers(self.device);
  if (!reached_) return !NcclFaults::Get().IsHeld(self.device);
  return Has(State::kReady) || AllDone();
}

Outcome LaunchTask::Run() {
  Outcome outcome;
  bool reached;
  {
    MutexLock lock(&clique_->mutex_);
    if (clique_->At(rank_).left) return outcome;
    reached = reached_;
  }
  if (reached) {
    MoveOne();
  } else {
    outcome = Reach();
    if (outcome.error != cudaSuccess) return outcome;
  }
  MutexLock lock(&clique_->mutex_);
  outcome.finished = AllDone();
  if (outcome.finished) clique_->At(rank_).running.clear();
  return outcome;
}

std::string LaunchTask::CheckBuffers(int device) const {
  const DeviceMemory& memory = DeviceMemory::Get();
  const size_t ranks = clique_->devices().size();
  for (const NcclOperation& o : operations_) {
    const size_t to_bytes = o.kind == Kind::kAllGather ? o.bytes * ranks : o.bytes;
    for (const auto& [p, bytes] : {std::pair<const void*, size_t>{o.from, o.bytes},
                                   std::pair<const void*, size_t>{o.to, to_bytes}}) {
      if (p == nullptr) continue;
      if (!memory.Holds(device, p, bytes)) {
        return Describe(rank_, o) + " uses " + std::to_string(bytes) + " bytes " +
               memory.Problem(device, p, bytes);
      }
      const int excluded = Excluded(device, o, p);
      if (excluded >= 0) {
        return Describe(rank_, o) + " uses memory from the pool of device " +
               std::to_string(device) + ", to which device " + std::to_string(excluded) +
               " has no access";
      }
    }
  }
  return "";
}

int LaunchTask::Excluded(int device, const NcclOperation& o, const void* p) const {
  if (!Runtime::Get().options().peers || NcclFaults::Get().AreSeparate()) return -1;
  const std::vector<int> all = clique_->devices();
  for (size_t r = 0; r < all.size(); ++r) {
    const bool takes_part = o.kind == Kind::kAllGather || static_cast<int>(r) == o.peer;
    if (takes_part && all[r] != device && !DeviceMemory::Get().Reaches(all[r], p)) return all[r];
  }
  return -1;
}

Outcome LaunchTask::Reach() {
  int device;
  {
    MutexLock lock(&clique_->mutex_);
    device = clique_->At(rank_).device;
  }
  Outcome outcome;
  const std::string problem = CheckBuffers(device);
  if (!problem.empty()) {
    outcome.error = cudaErrorIllegalAddress;
    outcome.report = "NCCL: " + problem;
    return outcome;
  }
  constexpr int kJunk = 0xff;
  const size_t ranks = clique_->devices().size();
  for (const NcclOperation& o : operations_) {
    if (o.kind == Kind::kRecv) std::memset(o.to, kJunk, o.bytes);
    for (size_t r = 0; o.kind == Kind::kAllGather && r < ranks; ++r) {
      // In place, the own part is what is sent.
      if (o.to + r * o.bytes != o.from) std::memset(o.to + r * o.bytes, kJunk, o.bytes);
    }
  }
  std::vector<std::string> misuses;
  {
    MutexLock lock(&clique_->mutex_);
    reached_ = true;
    for (const NcclOperation& o : operations_) {
      meetings_.push_back(clique_->Enter(rank_, o));
      const Meeting& meeting = *meetings_.back();
      if (meeting.state != State::kMismatched) continue;
      std::string text;
      for (size_t i = 0; i < meeting.part.size(); ++i) {
        if (meeting.there[i]) {
          text += (text.empty() ? "" : " meets ") + Describe(meeting.rank[i], meeting.part[i]);
        }
      }
      misuses.push_back(text);
    }
    clique_->At(rank_).running = meetings_;
    std::string circle;
    for (const int rank : clique_->Circle(rank_)) {
      circle += (circle.empty() ? "rank " : ", which waits for rank ") + std::to_string(rank);
    }
    if (!circle.empty()) misuses.push_back("ranks wait in a circle: " + circle);
  }
  for (const std::string& misuse : misuses) ReportMisuse(misuse);
  return outcome;
}

void LaunchTask::MoveOne() {
  Clique::MeetingPtr chosen;
  {
    MutexLock lock(&clique_->mutex_);
    std::vector<Clique::MeetingPtr> ready;
    for (const auto& meeting : meetings_) {
      if (meeting->state == State::kReady) ready.push_back(meeting);
    }
    if (ready.empty()) return;
    chosen = ready[random_.Below(ready.size())];
    chosen->state = State::kMoving;
  }
  Move(*chosen);
  NcclFaults::Get().Count(&NcclCounters::operations);
  MutexLock lock(&clique_->mutex_);
  chosen->state = State::kDone;
}

// ---- Clique

int Clique::ranks() {
  MutexLock lock(&mutex_);
  return static_cast<int>(members_.size());
}

std::string Clique::Join(int rank, int device) {
  MutexLock lock(&mutex_);
  if (At(rank).device >= 0) return "rank " + std::to_string(rank) + " is there twice";
  for (const Member& member : members_) {
    if (member.device == device) return "two ranks use device " + std::to_string(device);
  }
  At(rank).device = device;
  return "";
}

bool Clique::complete() {
  MutexLock lock(&mutex_);
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.device >= 0; });
}

std::vector<int> Clique::devices() {
  MutexLock lock(&mutex_);
  std::vector<int> all;
  for (const Member& member : members_) all.push_back(member.device);
  return all;
}

void Clique::Leave(int rank) {
  MutexLock lock(&mutex_);
  At(rank).left = true;
  for (const MeetingPtr& meeting : At(rank).running) {
    if (meeting->state == State::kReady) meeting->state = State::kMismatched;
  }
  const auto forget = [rank](auto& waiting, bool senders) {
    for (auto& [pair, meetings] : waiting) {
      if ((senders ? pair.first : pair.second) == rank) meetings.clear();
    }
  };
  forget(sends_, true);
  forget(recvs_, false);
}

TaskFactory Clique::MakeLaunch(int rank, std::vector<NcclOperation> operations) {
  NcclFaults::Get().Count(&NcclCounters::launches);
  const uint64_t seed = Runtime::Get().DrawSeed();
  return [self = shared_from_this(), rank, operations = std::move(operations), seed] {
    return std::make_unique<LaunchTask>(self, rank, operations, seed);
  };
}

Clique::MeetingPtr Clique::MeetPeer(int rank, const NcclOperation& operation) {
  const bool sends = operation.kind == Kind::kSend;
  const Pair pair = sends ? Pair{rank, operation.peer} : Pair{operation.peer, rank};
  auto& others = sends ? recvs_[pair] : sends_[pair];
  if (!others.empty()) {
    MeetingPtr meeting = others.front();
    others.pop_front();
    return meeting;
  }
  auto meeting = std::make_shared<Meeting>();
  meeting->rank = {pair.first, pair.second};
  (sends ? sends_[pair] : recvs_[pair]).push_back(meeting);
  return meeting;
}

Clique::MeetingPtr Clique::MeetAll(int rank) {
  MeetingPtr& meeting = gathers_[At(rank).gathers++];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    for (size_t r = 0; r < members_.size(); ++r) meeting->rank.push_back(static_cast<int>(r));
  }
  return meeting;
}

Clique::MeetingPtr Clique::Enter(int rank, const NcclOperation& operation) {
  const bool gather = operation.kind == Kind::kAllGather;
  MeetingPtr meeting = gather ? MeetAll(rank) : MeetPeer(rank, operation);
  const size_t ranks = meeting->rank.size();
  meeting->part.resize(ranks);
  meeting->there.resize(ranks);
  const size_t place = PlaceOf(rank, operation.kind);
  for (size_t i = 0; i < ranks; ++i) {
    if (meeting->there[i] && !Matches(meeting->part[i], operation)) {
      meeting->state = State::kMismatched;
    }
  }
  meeting->part[place] = operation;
  meeting->there[place] = true;
  const bool complete =
      std::all_of(meeting->there.begin(), meeting->there.end(), [](bool there) { return there; });
  bool gone = false;
  for (const int r : meeting->rank) gone = gone || At(r).left;
  if (complete && !gone && meeting->state == State::kWaiting) meeting->state = State::kReady;
  if (gather && complete) gathers_.erase(At(rank).gathers - 1);
  return meeting;
}

std::vector<int> Clique::Circle(int rank) {
  std::vector<int> path{rank};
  return FindCircle(rank, path) ? path : std::vector<int>();
}

bool Clique::FindCircle(int start, std::vector<int>& path) {
  for (const MeetingPtr& meeting : At(path.back()).running) {
    if (meeting->state != State::kWaiting) continue;
    for (size_t i = 0; i < meeting->rank.size(); ++i) {
      const int next = meeting->rank[i];
      // What has left waits for nobody.
      if (meeting->there[i] || At(next).left) continue;
      if (next == start) return true;
      if (std::find(path.begin(), path.end(), next) != path.end()) continue;
      path.push_back(next);
      if (FindCircle(start, path)) return true;
      path.pop_back();
    }
  }
  return false;
}

}  // namespace ringfill::cuda_emulation
