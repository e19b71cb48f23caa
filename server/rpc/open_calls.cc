#include "server/rpc/open_calls.h"

#include "absl/time/time.h"

namespace ringfill {

bool OpenCalls::TryAdd(const std::shared_ptr<EngineCall>& call) {
  absl::MutexLock lock(&mutex_);
  if (calls_.size() >= kMaxOpenCalls) return false;
  calls_.emplace(call.get(), call);
  return true;
}

void OpenCalls::Remove(const EngineCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

std::vector<std::shared_ptr<EngineCall>> OpenCalls::All() const {
  std::vector<std::shared_ptr<EngineCall>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, weak] : calls_) {
    if (std::shared_ptr<EngineCall> call = weak.lock()) all.push_back(std::move(call));
  }
  return all;
}

bool OpenCalls::WaitEmpty(Duration timeout) const {
  const auto empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&empty), absl::FromChrono(timeout));
}

}  // namespace ringfill
