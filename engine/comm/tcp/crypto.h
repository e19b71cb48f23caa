// The cryptography that the tcp transport needs, over OpenSSL's libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

struct evp_cipher_ctx_st;

namespace ringfill {

using Digest = std::array<std::byte, 32>;
using FrameKey = std::array<std::byte, 32>;
using FrameTag = std::array<std::byte, 16>;

// HMAC-SHA256 over the parts, one after the other.
Digest HmacSha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> parts);

// In a time that does not depend on where they differ. REQUIRES: equal sizes.
bool EqualInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b);

// From the system's generator.
void FillRandom(std::span<std::byte> bytes);

// AES-256-GMAC (NIST SP 800-38D). Not thread-safe.
class Gmac {
 public:
  explicit Gmac(const FrameKey& key);
  ~Gmac();
  Gmac(Gmac&& other) noexcept;
  Gmac& operator=(Gmac&& other) noexcept;

  // No two different inputs of one key may share (purpose, number).
  FrameTag Tag(uint32_t purpose, uint64_t number, std::span<const std::byte> bytes);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
};

}  // namespace ringfill
