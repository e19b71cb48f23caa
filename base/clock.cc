#include "base/clock.h"

namespace ringfill {
namespace {

class SteadyClock final : public Clock {
 public:
  Instant Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace ringfill
