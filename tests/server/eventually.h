// Waits for a condition that other threads or processes bring about, with a limit that only a hang
// reaches.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>

namespace ringfill {

inline constexpr auto kHangLimit = std::chrono::seconds(60);

// False when the limit was reached.
[[nodiscard]] inline bool Eventually(const std::function<bool()>& condition) {
  constexpr int kPollMs = 5;
  const auto end = std::chrono::steady_clock::now() + kHangLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, kPollMs);
  }
  return true;
}

}  // namespace ringfill
