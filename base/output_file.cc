#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfill {

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  struct stat there;
  const bool direct = stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  const std::string written = direct ? "" : absl::StrCat(path, ".", getpid(), ".part");
  const int fd = direct ? open(path.c_str(), O_WRONLY | O_CLOEXEC)
                        : open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<OutputFile>(new OutputFile(path, written, fd));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (!written_.empty()) unlink(written_.c_str());
}

absl::Status OutputFile::Error() const {
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
}

absl::Status OutputFile::Write(std::string_view bytes) {
  if (!WriteAll(fd_, bytes)) return Error();
  bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (close(std::exchange(fd_, -1)) != 0) return Error();
  if (written_.empty()) return absl::OkStatus();
  if (std::rename(written_.c_str(), path_.c_str()) != 0) return Error();
  written_.clear();
  return absl::OkStatus();
}

}  // namespace ringfill
