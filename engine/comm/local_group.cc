#include "engine/comm/local_group.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cpu_pause.h"

namespace ringfill {
namespace {

// About 50 microseconds: longer than ranks of a decode step drift apart, far shorter than a step.
constexpr int kSpins = 1000;
// How often a wait looks at a clock that is not the machine's.
constexpr Duration kRecheck = std::chrono::milliseconds(50);

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
    const Duration left = deadline_ - clock_.Now();
    return Clock::Real().Now() + (&clock_ == &Clock::Real() ? left : std::min(kRecheck, left));
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

Communicator::ExchangeResult LocalGroup::Exchange(int rank,
                                                  const Communicator::ExchangeArgs& args) {
  Communicator::ExchangeResult result;
  Offer mine;
  mine.bytes = args.send;
  MutexLock lock(&mutex_);
  if (aborted_) {
    result.status = abort_status_;
    return result;
  }
  RF_CHECK(OfferOf(rank, args.to) == nullptr);
  OfferOf(rank, args.to) = &mine;
  lane_wakeups_[args.to].Signal();
  result.status = Receive(rank, args, result.transfer_time);
  if (result.status.ok()) result.status = AwaitCopied(rank, args, mine);
  Withdraw(rank, args.to, mine);
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

absl::Status LocalGroup::AllGather(int rank, std::span<const std::byte> send,
                                   std::span<std::byte> recv, Instant deadline) {
  RF_CHECK(recv.size() == send.size() * ranks_);
  if (aborted_.load(std::memory_order_acquire)) return AbortStatus();
  const uint64_t call = ++parts_[rank].calls;
  Slot& slot = parts_[rank].slots[call % 2];
  if (slot.data.size() < send.size()) slot.data.resize(send.size());
  slot.bytes = send.size();
  Copy(slot.data, send);
  const uint64_t target = call * ranks_;
  CountIn(target);
  absl::Status status = AwaitArrivals(rank, target, deadline);
  if (status.ok()) status = CopyOut(rank, call, recv);
  if (!status.ok()) Abort(status);
  return status;
}

void LocalGroup::CountIn(uint64_t target) {
  // Sequentially consistent on both sides: either this rank sees the sleeper, or the sleeper, which
  // counts itself before it looks at arrivals_, sees the last arrival.
  if (arrivals_.fetch_add(1) + 1 == target && sleepers_.load() > 0) {
    MutexLock lock(&mutex_);
    gather_wakeup_.SignalAll();
  }
}

absl::Status LocalGroup::AwaitArrivals(int rank, uint64_t target, Instant deadline) {
  for (int i = 0; i < spins_; ++i) {
    if (arrivals_.load(std::memory_order_acquire) >= target) return absl::OkStatus();
    if (aborted_.load(std::memory_order_relaxed)) break;
    CpuPause();
  }
  const DeadlineTimer timer(clock_, deadline);
  MutexLock lock(&mutex_);
  sleepers_.fetch_add(1);
  absl::Status status;
  while (arrivals_.load() < target) {
    if (aborted_) {
      status = abort_status_;
      break;
    }
    if (timer.Expired()) {
      status = absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " waited in a collective call for ",
                       target - arrivals_.load(), " of ", ranks_, " ranks"));
      break;
    }
    gather_wakeup_.WaitUntil(&mutex_, timer.NextLook());
  }
  sleepers_.fetch_sub(1);
  return status;
}

absl::Status LocalGroup::CopyOut(int rank, uint64_t call, std::span<std::byte> recv) const {
  const size_t bytes = recv.size() / ranks_;
  for (int peer = 0; peer < ranks_; ++peer) {
    const Slot& slot = parts_[peer].slots[call % 2];
    if (slot.bytes != bytes) {
      return absl::DataLossError(absl::StrCat("rank ", peer, " gave ", slot.bytes,
                                              " bytes to a collective call, rank ", rank, " gave ",
                                              bytes));
    }
    Copy(recv.subspan(peer * bytes, bytes), std::span(slot.data).first(bytes));
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
