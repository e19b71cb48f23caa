// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace ringfill {

using Sha256Digest = std::array<std::byte, 32>;

// A digest of bytes that come in pieces. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::span<const std::byte> bytes);
  // Of all that was added. Once.
  Sha256Digest Finish();

 private:
  struct Context;
  const std::unique_ptr<Context> context_;
};

// Lower-case hexadecimal digits.
std::string ToHex(std::span<const std::byte> bytes);

}  // namespace ringfill
