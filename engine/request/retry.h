// How long a client should wait before it tries a failed request again. Travels on the status as a
// google.rpc.RetryInfo, in its protobuf encoding, which gRPC clients know; nothing here needs
// protobuf.
#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace ringfill {

// The payload's type, as absl::Status::GetPayload takes it.
inline constexpr std::string_view kRetryInfoType = "type.googleapis.com/google.rpc.RetryInfo";

// For what passes by itself: a full queue, a ring that forms anew.
inline constexpr Duration kRetrySoon = std::chrono::seconds(1);
// For a daemon that shuts down: until it is back, or another one has taken over.
inline constexpr Duration kRetryAfterRestart = std::chrono::seconds(5);

// `status` with the advice; one that it has already is replaced.
// REQUIRES: the status is not OK, delay >= 0.
absl::Status WithRetryAfter(absl::Status status, Duration delay);
// Nothing when there is none, or when it cannot be read.
std::optional<Duration> RetryAfter(const absl::Status& status);

}  // namespace ringfill
