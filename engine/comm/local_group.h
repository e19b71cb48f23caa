// What the ends of one `local` group share: offers for exchanges, slots for all-gathers, the abort.
//
// Exchange: a sender posts an offer that points at its buffer; the receiver copies straight from it
// and marks it done. All-gather: every rank copies its part into one of two alternating slots,
// counts itself in and waits for the count; a slot is written again only two calls later, when the
// call between has shown that every rank is done reading it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/comm/communicator.h"

namespace ringfill {

// Thread-safe in this sense: per rank, Exchange runs on one thread at a time and AllGather on one
// thread at a time; Abort on any. A call that fails aborts the group with its status, so that no
// rank is left waiting for one that has given up.
class LocalGroup {
 public:
  LocalGroup(int ranks, const Clock& clock);

  int ranks() const { return ranks_; }
  Communicator::ExchangeResult Exchange(int rank, const Communicator::ExchangeArgs& args);
  absl::Status AllGather(int rank, std::span<const std::byte> send, std::span<std::byte> recv,
                         Instant deadline);
  void Abort(absl::Status status);

 private:
  // Lives on the sender's stack while its exchange runs.
  struct Offer {
    enum class State { kPosted, kCopying, kDone };
    std::span<const std::byte> bytes;
    State state = State::kPosted;
    absl::Status status;
  };
  struct Slot {
    std::vector<std::byte> data;  // only grows
    size_t bytes = 0;
  };
  struct alignas(64) Part {
    uint64_t calls = 0;
    Slot slots[2];
  };

  Offer*& OfferOf(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return offers_[static_cast<size_t>(from) * ranks_ + to];
  }
  absl::Status Receive(int rank, const Communicator::ExchangeArgs& args, Duration& copy_time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitCopied(int rank, const Communicator::ExchangeArgs& args, const Offer& mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Withdraw(int rank, int to, Offer& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountIn(uint64_t target);
  absl::Status AwaitArrivals(int rank, uint64_t target, Instant deadline);
  absl::Status CopyOut(int rank, uint64_t call, std::span<std::byte> recv) const;
  void AbortLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AbortStatus();

  const int ranks_;
  const int spins_;
  const Clock& clock_;

  Mutex mutex_;
  absl::Status abort_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Offer*> offers_ ABSL_GUARDED_BY(mutex_);  // [from, to], null: none
  std::vector<CondVar> lane_wakeups_;                   // [ranks]
  CondVar gather_wakeup_;

  std::atomic<bool> aborted_{false};
  std::vector<Part> parts_;  // [ranks]; ordered by arrivals_
  alignas(64) std::atomic<uint64_t> arrivals_{0};
  alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace ringfill
