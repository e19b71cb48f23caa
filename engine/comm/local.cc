#include "engine/comm/local.h"

#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "engine/comm/local_group.h"

namespace ringfill {
namespace {

// Exchanges of one rank that were started and not waited for yet.
constexpr size_t kMaxOutstandingExchanges = 256;

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {
    if (size() > 1) lane_ = std::thread([this] { RunLane(); });
  }

  ~LocalCommunicator() override {
    if (!lane_.joinable()) return;
    bool unfinished;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      unfinished = results_.size() < outstanding_;
      work_.Signal();
    }
    if (unfinished) group_->Abort(absl::CancelledError("the communicator was destroyed"));
    lane_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->ranks(); }

  uint64_t StartExchange(const ExchangeArgs& args) override {
    RF_CHECK(args.to >= 0 && args.to < size() && args.from >= 0 && args.from < size());
    MutexLock lock(&mutex_);
    RF_CHECK(outstanding_ < kMaxOutstandingExchanges);
    ++outstanding_;
    const uint64_t ticket = ++last_ticket_;
    if (size() == 1) {
      results_[ticket] = group_->Exchange(rank_, args);
    } else {
      queue_.push_back({ticket, args});
      work_.Signal();
    }
    return ticket;
  }

  ExchangeResult Wait(uint64_t ticket) override {
    MutexLock lock(&mutex_);
    RF_CHECK(ticket >= 1 && ticket <= last_ticket_);
    for (;;) {
      if (auto it = results_.find(ticket); it != results_.end()) {
        ExchangeResult result = std::move(it->second);
        results_.erase(it);
        --outstanding_;
        return result;
      }
      finished_.Wait(&mutex_);
    }
  }

  absl::Status AllGather(std::span<const std::byte> send, std::span<std::byte> recv,
                         Instant deadline) override {
    return group_->AllGather(rank_, send, recv, deadline);
  }
  absl::Status Barrier(Instant deadline) override {
    return group_->AllGather(rank_, {}, {}, deadline);
  }
  void Abort(absl::Status status) override { group_->Abort(std::move(status)); }

 private:
  struct Pending {
    uint64_t ticket;
    ExchangeArgs args;
  };

  void RunLane() {
    MutexLock lock(&mutex_);
    for (;;) {
      while (queue_.empty() && !stopping_) work_.Wait(&mutex_);
      if (queue_.empty()) return;
      const Pending next = queue_.front();
      queue_.pop_front();
      mutex_.Unlock();
      ExchangeResult result = group_->Exchange(rank_, next.args);
      mutex_.Lock();
      results_[next.ticket] = std::move(result);
      finished_.SignalAll();
    }
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;

  Mutex mutex_;
  CondVar work_, finished_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Pending> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, ExchangeResult> results_ ABSL_GUARDED_BY(mutex_);  // by ticket
  std::thread lane_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int ranks, const Clock& clock) {
  RF_CHECK(ranks >= 1);
  auto group = std::make_shared<LocalGroup>(ranks, clock);
  std::vector<std::unique_ptr<Communicator>> ends;
  ends.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    ends.push_back(std::make_unique<LocalCommunicator>(group, rank));
  }
  return ends;
}

}  // namespace ringfill
