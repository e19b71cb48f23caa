// The Generate and Score calls in progress, bounded.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace ringfill {

class EngineCall;

inline constexpr size_t kMaxOpenCalls = 4096;

// Thread-safe. Refers to calls without owning them.
class OpenCalls {
 public:
  // False when kMaxOpenCalls are open.
  [[nodiscard]] bool TryAdd(const std::shared_ptr<EngineCall>& call);
  // From the call's destructor; unknown ones are fine.
  void Remove(const EngineCall* call);
  std::vector<std::shared_ptr<EngineCall>> All() const;
  // Waits until none is left, at most `timeout`. True when none is.
  bool WaitEmpty(Duration timeout) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<const EngineCall*, std::weak_ptr<EngineCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ringfill
