#include "engine/comm/tcp/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/comm/tcp/socket.h"

namespace ringfill {
namespace {

// What a secret may have, and a byte more that shows that it is too long.
class Bytes {
 public:
  Bytes() : bytes_(Secret::kMaxBytes + 2, '\0') {}
  ~Bytes() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

  absl::Status Read(int fd) {
    while (have_ < bytes_.size()) {
      const ssize_t got = read(fd, bytes_.data() + have_, bytes_.size() - have_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::UnavailableError(std::strerror(errno));
      if (got == 0) break;
      have_ += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }
  std::string_view text() const { return std::string_view(bytes_).substr(0, have_); }

 private:
  std::string bytes_;
  size_t have_ = 0;
};

}  // namespace

absl::StatusOr<Secret> Secret::FromBytes(std::string_view bytes) {
  if (bytes.size() < kMinBytes || bytes.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the shared secret has ", bytes.size(),
                                                   " bytes, it must have ", kMinBytes, " to ",
                                                   kMaxBytes));
  }
  const std::byte* const data = reinterpret_cast<const std::byte*>(bytes.data());
  return Secret(std::vector<std::byte>(data, data + bytes.size()));
}

absl::StatusOr<Secret> Secret::FromFile(const std::string& path) {
  // Not blocking, so that a pipe cannot hold us up before it is refused.
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const std::string message = absl::StrCat("secret file ", path, ": ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("secret file ", path, " is no regular file"));
  }
  if ((info.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "secret file ", path, " is open to other users; restrict it with: chmod 600 ", path));
  }
  Bytes bytes;
  if (const absl::Status read = bytes.Read(file.get()); !read.ok()) {
    return absl::UnavailableError(absl::StrCat("secret file ", path, ": ", read.message()));
  }
  std::string_view text = bytes.text();
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  absl::StatusOr<Secret> secret = FromBytes(text);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret file ", path, ": ", secret.status().message()));
  }
  return secret;
}

absl::StatusOr<Secret> Secret::FromDescriptor(int fd) {
  Bytes bytes;
  if (const absl::Status read = bytes.Read(fd); !read.ok()) {
    return absl::UnavailableError(absl::StrCat("the shared secret: ", read.message()));
  }
  return FromBytes(bytes.text());
}

Secret Secret::Random() {
  std::vector<std::byte> bytes(32);
  FillRandom(bytes);
  return Secret(std::move(bytes));
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Digest Secret::Hmac(std::initializer_list<std::span<const std::byte>> parts) const {
  return HmacSha256(bytes_, parts);
}

}  // namespace ringfill
