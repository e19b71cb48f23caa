#include "engine/comm/nccl/detached_call.h"

#include <thread>
#include <utility>

namespace ringfill {

DetachedCall::DetachedCall(std::function<void()> call) {
  std::thread([state = state_, call = std::move(call)]() mutable {
    call();
    call = nullptr;
    MutexLock lock(&state->mutex);
    state->ended = true;
    state->changed.SignalAll();
  }).detach();
}

bool DetachedCall::Await(Instant until) const {
  MutexLock lock(&state_->mutex);
  while (!state_->ended && state_->changed.WaitUntil(&state_->mutex, until)) {
  }
  return state_->ended;
}

}  // namespace ringfill
