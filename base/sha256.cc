#include "base/sha256.h"

#include "base/check.h"
#include "openssl/evp.h"

namespace ringfill {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  RF_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(std::span<const std::byte> bytes) {
  RF_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  RF_CHECK(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()),
                              nullptr) == 1);
  return digest;
}

std::string ToHex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

}  // namespace ringfill
