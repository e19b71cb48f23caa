// Bytes to files: all of them, and a file that appears whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace ringfill {

// Writes all of `bytes` at the descriptor's position. False, with errno set, when that fails half
// way or at once: what was written of them stays.
[[nodiscard]] bool WriteAll(int fd, std::string_view bytes);

// Written beside its place and moved there by Commit; without it, the destructor removes what was
// written. What is there and no regular file (a pipe, /dev/null) is written to directly.
// Not thread-safe.
class OutputFile {
 public:
  // INVALID_ARGUMENT with the path when it cannot be written.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // UNAVAILABLE with the path (a full disk), also from Commit.
  absl::Status Write(std::string_view bytes);
  absl::Status Commit();
  int64_t bytes() const { return bytes_; }

 private:
  OutputFile(std::string path, std::string written, int fd)
      : path_(std::move(path)), written_(std::move(written)), fd_(fd) {}
  absl::Status Error() const;

  const std::string path_;
  std::string written_;  // its name until Commit; empty when written to directly, or moved
  int fd_;
  int64_t bytes_ = 0;
};

}  // namespace ringfill
