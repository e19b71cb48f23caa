// What the ends of one `local` group share: offers for exchanges, slots for all-gathers, the abort.
//
// Exchange: a sender posts an offer that points at its buffer; the receiver copies straight from it
// and marks it done. All-gather: every rank shows its part in one of two alternating slots, counts
// itself in, waits for the count and copies the parts of all. A small part is copied to the slot,
// which is written again only two calls later, when the call between has shown that every rank is
// done reading it. A large part is read where it lies, and a second count shows that it was.
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
  struct Result {
    absl::Status status;
    Duration transfer_time{};
  };

  LocalGroup(int ranks, const Clock& clock);

  int ranks() const { return ranks_; }
  // Waits for args.after, then moves the bytes.
  Result Exchange(int rank, const Communicator::ExchangeArgs& args);
  Result AllGather(int rank, const Communicator::AllGatherArgs& args);
  void Abort(absl::Status status);

 private:
  // Lives on the sender's stack while its exchange runs.
  struct Offer {
    enum class State { kPosted, kCopying, kDone };
    std::span<const std::byte> bytes;
    State state = State::kPosted;
    Duration copy_time{};
    absl::Status status;
  };
  struct Slot {
    std::vector<std::byte> data;  // only grows
    std::span<const std::byte> part;
  };
  struct alignas(64) Part {
    uint64_t calls = 0;
    uint64_t large_calls = 0;
    Slot slots[2];
    std::atomic<int> readers{0};  // of a large part
  };
  using Count = std::atomic<uint64_t>;

  Offer*& OfferOf(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return offers_[static_cast<size_t>(from) * ranks_ + to];
  }
  absl::Status AwaitAfter(int rank, const std::vector<EventPtr>& after, Instant deadline);
  absl::Status Receive(int rank, const Communicator::ExchangeArgs& args, Duration& copy_time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitCopied(int rank, const Communicator::ExchangeArgs& args, const Offer& mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Withdraw(int rank, int to, Offer& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Gather(int rank, const Communicator::AllGatherArgs& args, Duration& copy_time);
  // Counts this rank in and waits until `count` has reached `target`.
  absl::Status Meet(int rank, Count& count, uint64_t target, Instant deadline);
  absl::Status AwaitCount(int rank, const Count& count, uint64_t target, Instant deadline);
  absl::Status CopyParts(int rank, uint64_t call, std::span<std::byte> recv);
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
  alignas(64) Count arrivals_{0};
  alignas(64) Count departures_{0};  // of large calls
  alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace ringfill
