// Calls that may never return, because a GPU or its driver does not answer.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace ringfill {

// Runs on a thread of its own, which nobody joins. Thread-safe.
class DetachedCall {
 public:
  explicit DetachedCall(std::function<void()> call);
  // True when it has ended and what it holds is gone; false at `until`: both live on until it ends.
  [[nodiscard]] bool Await(Instant until) const;

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    bool ended ABSL_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

[[nodiscard]] inline bool EndsInTime(std::function<void()> call, Instant until) {
  return DetachedCall(std::move(call)).Await(until);
}

}  // namespace ringfill
