// Time as an interface, so that tests of deadlines and waits need no sleeping.
#pragma once

#include <chrono>

namespace ringfill {

using Instant = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;

  // The machine's monotonic clock; lives as long as the process.
  static const Clock& Real();
};

inline Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}
inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline double Milliseconds(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace ringfill
