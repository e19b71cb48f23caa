#include "tests/testing/late_device.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "base/mutex.h"

namespace ringfill {
namespace {

// One call in this many lets some of the queue run although nobody waits for it.
constexpr uint64_t kSpontaneous = 6;
constexpr uint64_t kMaxYields = 40;

// Outlives the stream, since events hold it.
class Shared {
 public:
  explicit Shared(uint64_t seed) : random_(seed) {}

  uint64_t Append() {
    MutexLock lock(&mutex_);
    ++queued_;
    MaybeAllow();
    return queued_;
  }
  // Lets everything up to number `until` run.
  void Demand(uint64_t until) {
    MutexLock lock(&mutex_);
    Allow(until);
  }
  // Somebody looked without waiting: a loop of looks must come to an end.
  void Look(uint64_t until) {
    MutexLock lock(&mutex_);
    if (random_() % kSpontaneous == 0) Allow(until);
  }
  uint64_t queued() const {
    MutexLock lock(&mutex_);
    return queued_;
  }
  void Stop() {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  // Waits until number `next` may run; false when the stream ends. Sets how often to yield before.
  bool AwaitTurn(uint64_t next, uint64_t* yields) {
    MutexLock lock(&mutex_);
    while (!stop_ && allowed_ < next) changed_.Wait(&mutex_);
    *yields = random_() % kMaxYields;
    return !stop_;
  }
  void Finished(uint64_t number) {
    MutexLock lock(&mutex_);
    finished_ = number;
    changed_.SignalAll();
  }
  absl::Status AwaitFinished(uint64_t number, Instant deadline) {
    MutexLock lock(&mutex_);
    Allow(number);
    while (finished_ < number) {
      if (!changed_.WaitUntil(&mutex_, deadline) && finished_ < number) {
        return absl::DeadlineExceededError("queued work did not finish in time");
      }
    }
    return absl::OkStatus();
  }

 private:
  void Allow(uint64_t until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (until <= allowed_) return;
    allowed_ = until;
    changed_.SignalAll();
  }
  void MaybeAllow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (random_() % kSpontaneous != 0 || queued_ <= allowed_) return;
    Allow(allowed_ + 1 + random_() % (queued_ - allowed_));
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  // Numbers of operations, counted from 1.
  uint64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

// Behind operation `number` of a stream.
class LateEvent final : public HostEvent {
 public:
  LateEvent(std::shared_ptr<Shared> shared, uint64_t number)
      : shared_(std::move(shared)), number_(number) {}
  absl::Status Await(Instant deadline) override {
    shared_->Demand(number_);
    return HostEvent::Await(deadline);
  }
  bool done() const override {
    if (HostEvent::done()) return true;
    shared_->Look(number_);
    return false;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const uint64_t number_;
};

class LateStream final : public HostStream {
 public:
  LateStream(uint64_t seed, const Clock& clock, TraceBuffer* trace)
      : clock_(clock), trace_(trace), shared_(std::make_shared<Shared>(seed)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~LateStream() override {
    shared_->Stop();
    thread_.join();
    for (Item& item : items_) {
      if (auto* mark = std::get_if<std::shared_ptr<LateEvent>>(&item)) {
        (*mark)->Complete(absl::CancelledError("the stream has ended"));
      }
    }
  }

  void Enqueue(const OpLabel& label, std::function<absl::Status()> fn) override {
    Push(Operation{label, std::move(fn)});
  }
  EventPtr Record() override {
    // The mark is an item of its own, behind what was queued.
    auto event = std::make_shared<LateEvent>(shared_, shared_->queued() + 1);
    Push(event);
    return event;
  }
  void WaitFor(EventPtr event, Instant deadline) override {
    if (event != nullptr) Push(Wait{std::move(event), deadline});
  }
  absl::Status Synchronize(Instant deadline) override {
    RF_RETURN_IF_ERROR(shared_->AwaitFinished(shared_->queued(), deadline));
    return status();
  }
  absl::Status status() const override {
    MutexLock lock(&mutex_);
    return status_;
  }
  void Clear() override {
    MutexLock lock(&mutex_);
    status_ = absl::OkStatus();
  }
  StreamTimes TakeTimes() override {
    MutexLock lock(&mutex_);
    return std::exchange(times_, {});
  }

 private:
  struct Operation {
    OpLabel label;
    std::function<absl::Status()> fn;
  };
  struct Wait {
    EventPtr event;
    Instant deadline;
  };
  using Item = std::variant<Operation, Wait, std::shared_ptr<LateEvent>>;

  void Push(Item item) {
    {
      MutexLock lock(&mutex_);
      items_.push_back(std::move(item));
    }
    shared_->Append();
  }

  void Loop() {
    uint64_t yields = 0;
    for (uint64_t number = 1; shared_->AwaitTurn(number, &yields); ++number) {
      for (uint64_t i = 0; i < yields; ++i) std::this_thread::yield();
      Item item = Pop();
      if (auto* mark = std::get_if<std::shared_ptr<LateEvent>>(&item)) {
        (*mark)->Complete(status());
      } else if (status().ok()) {
        absl::Status result = Run(item);
        MutexLock lock(&mutex_);
        status_.Update(result);
      }
      item = Wait{};  // what it owns goes before anybody hears that it has run
      shared_->Finished(number);
    }
  }

  Item Pop() {
    MutexLock lock(&mutex_);
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  absl::Status Run(Item& item) {
    const Instant begin = clock_.Now();
    if (auto* wait = std::get_if<Wait>(&item)) {
      absl::Status result = wait->event->Await(wait->deadline);
      MutexLock lock(&mutex_);
      times_.wait_s += Seconds(clock_.Now() - begin);
      return result;
    }
    auto& operation = std::get<Operation>(item);
    absl::Status result = operation.fn();
    const Instant end = clock_.Now();
    if (trace_ != nullptr) trace_->Add({operation.label, TraceLane::kCompute, begin, end});
    MutexLock lock(&mutex_);
    times_.busy_s += Seconds(end - begin);
    return result;
  }

  const Clock& clock_;
  TraceBuffer* const trace_;
  const std::shared_ptr<Shared> shared_;
  mutable Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  StreamTimes times_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: started when everything above is ready
};

}  // namespace

std::unique_ptr<HostStream> MakeLateStream(uint64_t seed, const Clock& clock, TraceBuffer* trace) {
  return std::make_unique<LateStream>(seed, clock, trace);
}

HostStreamFactory LateStreams(uint64_t seed) {
  auto next = std::make_shared<std::atomic<uint64_t>>(seed * 1000);
  return [next](const Clock& clock, TraceBuffer* trace) {
    return MakeLateStream(next->fetch_add(1), clock, trace);
  };
}

}  // namespace ringfill
