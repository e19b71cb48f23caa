#include "engine/request/outbox.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"

namespace ringfill {

Outbox::Outbox(size_t capacity, std::function<void()> on_ready)
    : capacity_(capacity), on_ready_(std::move(on_ready)) {
  RF_CHECK(capacity_ >= 1);
}

std::optional<RequestEvent> Outbox::TryPop() {
  MutexLock lock(&mutex_);
  if (events_.empty()) {
    consumer_waits_ = true;
    return std::nullopt;
  }
  RequestEvent event = std::move(events_.front());
  events_.pop_front();
  if (std::holds_alternative<TokenEvent>(event)) --tokens_;
  return event;
}

void Outbox::Close() {
  std::deque<RequestEvent> dropped;  // destroyed after the lock is gone
  MutexLock lock(&mutex_);
  closed_.store(true, std::memory_order_release);
  dropped.swap(events_);
  tokens_ = 0;
  while (callback_thread_ != std::thread::id() && callback_thread_ != std::this_thread::get_id()) {
    callback_returned_.Wait(&mutex_);
  }
}

void Outbox::Push(RequestEvent event) {
  {
    MutexLock lock(&mutex_);
    if (closed() || !Enqueue(std::move(event))) return;
    // A second producer thread: callbacks run one at a time.
    while (callback_thread_ != std::thread::id()) callback_returned_.Wait(&mutex_);
    if (closed()) return;
    callback_thread_ = std::this_thread::get_id();
  }
  if (on_ready_) on_ready_();
  MutexLock lock(&mutex_);
  callback_thread_ = std::thread::id();
  callback_returned_.SignalAll();
}

bool Outbox::Enqueue(RequestEvent event) {
  if (std::holds_alternative<ProgressEvent>(event)) {
    const auto waiting = std::find_if(events_.begin(), events_.end(), [](const RequestEvent& e) {
      return std::holds_alternative<ProgressEvent>(e);
    });
    if (waiting != events_.end()) {
      *waiting = std::move(event);
      return false;
    }
  }
  if (std::holds_alternative<TokenEvent>(event)) {
    RF_CHECK(tokens_ < capacity_);
    ++tokens_;
  }
  events_.push_back(std::move(event));
  return std::exchange(consumer_waits_, false);
}

bool Outbox::full() const {
  MutexLock lock(&mutex_);
  return tokens_ >= capacity_;
}

}  // namespace ringfill
