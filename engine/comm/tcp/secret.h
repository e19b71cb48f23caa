// The secret that all processes of one deployment share, and prove to each other.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/comm/tcp/crypto.h"

namespace ringfill {

// Copyable; wiped when destroyed. Const calls are thread-safe.
class Secret {
 public:
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 4096;

  // INVALID_ARGUMENT when shorter than kMinBytes or longer than kMaxBytes.
  static absl::StatusOr<Secret> FromBytes(std::string_view bytes);
  // The file's bytes without white space at their end. PERMISSION_DENIED when users other than
  // owner and group may read or write it, or the group may write it; NOT_FOUND; INVALID_ARGUMENT
  // when it is no regular file or of the wrong size.
  static absl::StatusOr<Secret> FromFile(const std::string& path);
  // All that can be read of a descriptor, to its end; does not close it. UNAVAILABLE when it cannot
  // be read, INVALID_ARGUMENT for a wrong size.
  static absl::StatusOr<Secret> FromDescriptor(int fd);
  // Fresh and random: for processes that one parent starts.
  static Secret Random();

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // Keyed with the secret; see HmacSha256.
  Digest Hmac(std::initializer_list<std::span<const std::byte>> parts) const;
  // For handing it to a child process, as a file only it can read.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Secret(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::vector<std::byte> bytes_;
};

}  // namespace ringfill
