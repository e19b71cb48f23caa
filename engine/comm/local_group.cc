#include "engine/comm/local_group.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cpu_pause.h"
#include "engine/comm/transfer.h"

namespace ringfill {
namespace {

// About 50 microseconds: longer than ranks of a decode step drift apart, far shorter than a step.
constexpr int kSpins = 1000;
// Larger parts of an all-gather are read in place.
constexpr size_t kSlotBytes = 64 << 10;
// How often a wait looks at a clock that is not the machine's.
constexpr Duration kRecheck = std::chrono::milliseconds(50);
constexpr Duration kLongestWait = std::chrono::hours(1);

void Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

// A deadline of the group's clock that also ends in real time when that clock stands still.
class DeadlineTimer {
 public:
  DeadlineTimer(const Clock& clock, Instant deadline)
      : clock_(clock),
        deadline_(deadline),
        budget_(deadline - clock.Now()),
        start_(Clock::Real().Now()) {}

  bool Expired() const {
    return clock_.Now() >= deadline_ || Clock::Real().Now() - start_ >= budget_;
  }
  Instant NextLook() const {
    // Capped, so that a deadline at the end of time does not wrap round.
    const Duration left = deadline_ - clock_.Now();
    const Duration most = &clock_ == &Clock::Real() ? kLongestWait : kRecheck;
    return Clock::Real().Now() + std::min(most, left);
  }

 private:
  const Clock& clock_;
  const Instant deadline_;
  const Duration budget_;
  const Instant start_;
};

}  // namespace

LocalGroup::LocalGroup(int ranks, const Clock& clock)
    : ranks_(ranks),
      spins_(ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0),
      clock_(clock),
      offers_(static_cast<size_t>(ranks) * ranks, nullptr),
      lane_wakeups_(ranks),
      parts_(ranks) {}

absl::Status LocalGroup::AwaitAfter(int rank, const std::vector<EventPtr>& after,
                                    Instant deadline) {
  if (after.empty()) return absl::OkStatus();
  const DeadlineTimer timer(clock_, deadline);
  std::optional<absl::Status> status =
      AwaitAll(after, [&] { return aborted_.load() || timer.Expired(); });
  if (!status.has_value()) {
    status = absl::DeadlineExceededError(
        absl::StrCat("rank ", rank, " waited for its own queued work before a transfer"));
  }
  if (status->ok()) return absl::OkStatus();
  Abort(*std::move(status));
  return AbortStatus();
}

LocalGroup::Result LocalGroup::Exchange(int rank, const Communicator::ExchangeArgs& args) {
  Result result;
  result.status = AwaitAfter(rank, args.after, args.deadline);
  if (!result.status.ok()) return result;
  Offer mine;
  mine.bytes = args.send;
  MutexLock lock(&mutex_);
  if (aborted_) {
    result.status = abort_status_;
    return result;
  }
  const bool sends = !args.send.empty();
  if (sends) {
    RF_CHECK(OfferOf(rank, args.to) == nullptr);
    OfferOf(rank, args.to) = &mine;
    lane_wakeups_[args.to].Signal();
  }
  if (!args.recv.empty()) result.status = Receive(rank, args, result.transfer_time);
  if (sends) {
    if (result.status.ok()) result.status = AwaitCopied(rank, args, mine);
    Withdraw(rank, args.to, mine);
    result.transfer_time = std::max(result.transfer_time, mine.copy_time);
  }
  if (!result.status.ok()) AbortLocked(result.status);
  return result;
}

absl::Status LocalGroup::Receive(int rank, const Communicator::ExchangeArgs& args,
                                 Duration& copy_time) {
  const DeadlineTimer timer(clock_, args.deadline);
  while (OfferOf(args.from, rank) == nullptr) {
    if (aborted_) return abort_status_;
    if (timer.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " waited for rank ", args.from,
                                                      " to send ", args.recv.size(), " bytes"));
    }
    lane_wakeups_[rank].WaitUntil(&mutex_, timer.NextLook());
  }
  Offer& theirs = *std::exchange(OfferOf(args.from, rank), nullptr);
  if (theirs.bytes.size() != args.recv.size()) {
    theirs.status =
        absl::DataLossError(absl::StrCat("rank ", args.from, " sent ", theirs.bytes.size(),
                                         " bytes, rank ", rank, " expected ", args.recv.size()));
    theirs.state = Offer::State::kDone;
    lane_wakeups_[args.from].Signal();
    return theirs.status;
  }
  theirs.state = Offer::State::kCopying;
  mutex_.Unlock();
  const Instant start = Clock::Real().Now();
  Copy(args.recv, theirs.bytes);
  copy_time = Clock::Real().Now() - start;
  mutex_.Lock();
  theirs.copy_time = copy_time;
  theirs.state = Offer::State::kDone;
  lane_wakeups_[args.from].Signal();
  return absl::OkStatus();
}

absl::Status LocalGroup::AwaitCopied(int rank, const Communicator::ExchangeArgs& args,
                                     const Offer& mine) {
  const DeadlineTimer timer(clock_, args.deadline);
  while (mine.state != Offer::State::kDone) {
    if (aborted_) return abort_status_;
    if (timer.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " waited for rank ", args.to,
                                                      " to take ", args.send.size(), " bytes"));
    }
    lane_wakeups_[rank].WaitUntil(&mutex_, timer.NextLook());
  }
  return mine.status;
}

void LocalGroup::Withdraw(int rank, int to, Offer& mine) {
  // A copy that has begun reads the caller's buffer; it ends by itself and soon.
  while (mine.state == Offer::State::kCopying) lane_wakeups_[rank].Wait(&mutex_);
  if (mine.state == Offer::State::kPosted) OfferOf(rank, to) = nullptr;
}

LocalGroup::Result LocalGroup::AllGather(int rank, const Communicator::AllGatherArgs& args) {
  RF_CHECK(args.recv.size() == args.send.size() * ranks_);
  Result result;
  result.status = AwaitAfter(rank, args.after, args.deadline);
  if (!result.status.ok()) return result;
  if (aborted_.load(std::memory_order_acquire)) {
    result.status = AbortStatus();
    return result;
  }
  result.status = Gather(rank, args, result.transfer_time);
  if (!result.status.ok()) {
    Abort(result.status);
    // Sequentially consistent on both sides: whoever has begun to read this rank's part is seen
    // here, whoever has not sees the abort.
    while (parts_[rank].readers.load() > 0) std::this_thread::yield();
  }
  return result;
}

absl::Status LocalGroup::Gather(int rank, const Communicator::AllGatherArgs& args,
                                Duration& copy_time) {
  Part& own = parts_[rank];
  const uint64_t call = ++own.calls;
  Slot& slot = own.slots[call % 2];
  const bool large = args.send.size() > kSlotBytes;
  const Instant start = Clock::Real().Now();
  if (large) {
    slot.part = args.send;
  } else {
    if (slot.data.size() < args.send.size()) slot.data.resize(args.send.size());
    Copy(slot.data, args.send);
    slot.part = std::span(slot.data).first(args.send.size());
  }
  const Instant shown = Clock::Real().Now();
  RF_RETURN_IF_ERROR(Meet(rank, arrivals_, call * ranks_, args.deadline));
  const Instant met = Clock::Real().Now();
  RF_RETURN_IF_ERROR(CopyParts(rank, call, args.recv));
  copy_time = (shown - start) + (Clock::Real().Now() - met);
  if (!large) return absl::OkStatus();
  return Meet(rank, departures_, ++own.large_calls * ranks_, args.deadline);
}

absl::Status LocalGroup::Meet(int rank, Count& count, uint64_t target, Instant deadline) {
  // Sequentially consistent on both sides: either this rank sees the sleeper, or the sleeper, which
  // counts itself before it looks at the count, sees the last arrival.
  if (count.fetch_add(1) + 1 == target && sleepers_.load() > 0) {
    MutexLock lock(&mutex_);
    gather_wakeup_.SignalAll();
  }
  return AwaitCount(rank, count, target, deadline);
}

absl::Status LocalGroup::AwaitCount(int rank, const Count& count, uint64_t target,
                                    Instant deadline) {
  for (int i = 0; i < spins_; ++i) {
    if (count.load(std::memory_order_acquire) >= target) return absl::OkStatus();
    if (aborted_.load(std::memory_order_relaxed)) break;
    CpuPause();
  }
  const DeadlineTimer timer(clock_, deadline);
  MutexLock lock(&mutex_);
  sleepers_.fetch_add(1);
  absl::Status status;
  while (count.load() < target) {
    if (aborted_) {
      status = abort_status_;
      break;
    }
    if (timer.Expired()) {
      status = absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " waited in a collective call for ", target - count.load(),
                       " of ", ranks_, " ranks"));
      break;
    }
    gather_wakeup_.WaitUntil(&mutex_, timer.NextLook());
  }
  sleepers_.fetch_sub(1);
  return status;
}

absl::Status LocalGroup::CopyParts(int rank, uint64_t call, std::span<std::byte> recv) {
  const size_t bytes = recv.size() / ranks_;
  for (int peer = 0; peer < ranks_; ++peer) {
    const std::span<const std::byte> part = parts_[peer].slots[call % 2].part;
    if (part.size() != bytes) {
      return absl::DataLossError(absl::StrCat("rank ", peer, " gave ", part.size(),
                                              " bytes to a collective call, rank ", rank, " gave ",
                                              bytes));
    }
    std::atomic<int>& readers = parts_[peer].readers;
    const bool large = bytes > kSlotBytes;
    if (large) {
      readers.fetch_add(1);
      if (aborted_.load()) {
        readers.fetch_sub(1);
        return AbortStatus();
      }
    }
    Copy(recv.subspan(peer * bytes, bytes), part);
    if (large) readers.fetch_sub(1);
  }
  return absl::OkStatus();
}

void LocalGroup::Abort(absl::Status status) {
  MutexLock lock(&mutex_);
  AbortLocked(std::move(status));
}

void LocalGroup::AbortLocked(absl::Status status) {
  RF_CHECK(!status.ok());
  if (aborted_) return;
  abort_status_ = std::move(status);
  aborted_ = true;
  for (CondVar& wakeup : lane_wakeups_) wakeup.SignalAll();
  gather_wakeup_.SignalAll();
}

absl::Status LocalGroup::AbortStatus() {
  MutexLock lock(&mutex_);
  return abort_status_;
}

}  // namespace ringfill
