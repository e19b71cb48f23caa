#include "engine/comm/lane.h"

#include <utility>

namespace ringfill {

Lane::~Lane() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    work_.Signal();
  }
  thread_.join();
}

void Lane::Post(std::function<void()> job) {
  {
    MutexLock lock(&mutex_);
    jobs_.push_back(std::move(job));
    work_.Signal();
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void Lane::Run() {
  MutexLock lock(&mutex_);
  for (;;) {
    while (jobs_.empty() && !stopping_) work_.Wait(&mutex_);
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    mutex_.Unlock();
    job();
    mutex_.Lock();
  }
}

}  // namespace ringfill
