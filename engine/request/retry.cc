#include "engine/request/retry.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace ringfill {
namespace {

// RetryInfo { Duration retry_delay = 1 }, Duration { int64 seconds = 1; int32 nanos = 2 }.
constexpr uint8_t kDelayTag = 1 << 3 | 2;
constexpr uint8_t kSecondsTag = 1 << 3;
constexpr uint8_t kNanosTag = 2 << 3;
constexpr int64_t kNanos = 1'000'000'000;
constexpr int64_t kMaxSeconds = 315'576'000'000;  // of a protobuf duration

absl::string_view TypeUrl() { return {kRetryInfoType.data(), kRetryInfoType.size()}; }

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

std::optional<uint64_t> TakeVarint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(in.front());
    in.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

}  // namespace

absl::Status WithRetryAfter(absl::Status status, Duration delay) {
  RF_CHECK(!status.ok() && delay >= Duration::zero());
  const int64_t nanos = std::chrono::nanoseconds(delay).count();
  std::string duration;
  if (nanos >= kNanos) {
    duration += static_cast<char>(kSecondsTag);
    PutVarint(duration, static_cast<uint64_t>(nanos / kNanos));
  }
  if (nanos % kNanos > 0) {
    duration += static_cast<char>(kNanosTag);
    PutVarint(duration, static_cast<uint64_t>(nanos % kNanos));
  }
  std::string info(1, static_cast<char>(kDelayTag));
  PutVarint(info, duration.size());
  status.SetPayload(TypeUrl(), absl::Cord(info + duration));
  return status;
}

std::optional<Duration> RetryAfter(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl());
  if (!payload) return std::nullopt;
  const std::string bytes(*payload);
  std::string_view in = bytes;
  if (in.empty() || static_cast<uint8_t>(in.front()) != kDelayTag) return std::nullopt;
  in.remove_prefix(1);
  const std::optional<uint64_t> size = TakeVarint(in);
  if (size != in.size()) return std::nullopt;
  uint64_t seconds = 0, nanos = 0;
  while (!in.empty()) {
    const auto tag = static_cast<uint8_t>(in.front());
    in.remove_prefix(1);
    const std::optional<uint64_t> value = TakeVarint(in);
    if (!value || (tag != kSecondsTag && tag != kNanosTag)) return std::nullopt;
    (tag == kSecondsTag ? seconds : nanos) = *value;
  }
  if (seconds > kMaxSeconds || nanos >= kNanos) return std::nullopt;
  // A clock's nanoseconds hold about 292 years.
  if (seconds > static_cast<uint64_t>(
                    std::chrono::floor<std::chrono::seconds>(Duration::max()).count() - 1)) {
    return Duration::max();
  }
  return std::chrono::seconds(static_cast<int64_t>(seconds)) +
         std::chrono::nanoseconds(static_cast<int64_t>(nanos));
}

}  // namespace ringfill
