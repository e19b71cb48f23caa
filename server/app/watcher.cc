#include "server/app/watcher.h"

#include <utility>

#include "absl/time/time.h"

namespace ringfill {

Watcher::Watcher(Duration period, std::function<void()> check)
    : thread_([this, wait = absl::FromChrono(period), check = std::move(check)] {
        while (!stop_.WaitForNotificationWithTimeout(wait)) check();
      }) {}

Watcher::~Watcher() {
  stop_.Notify();
  thread_.join();
}

void Readiness::Update(double seconds_since_progress) {
  const bool ready = seconds_since_progress <= limit_s_;
  if (ready == ready_) return;
  ready_ = ready;
  publish_(ready);
}

}  // namespace ringfill
