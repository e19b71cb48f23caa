#include "engine/comm/tcp/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "base/check.h"
#include "engine/comm/tcp/wire.h"

namespace ringfill {
namespace {

const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

Digest HmacSha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> joined;
  for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  Digest digest;
  unsigned int bytes = 0;
  RF_CHECK(key.size() <= INT_MAX);
  RF_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Raw(joined.data()),
                joined.size(), Raw(digest.data()), &bytes) != nullptr);
  RF_CHECK(bytes == digest.size());
  return digest;
}

bool EqualInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) {
  RF_CHECK(a.size() == b.size());
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void FillRandom(std::span<std::byte> bytes) {
  RF_CHECK(RAND_bytes(Raw(bytes.data()), static_cast<int>(bytes.size())) == 1);
}

void Gmac::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Gmac::Gmac(const FrameKey& key) : context_(EVP_CIPHER_CTX_new()) {
  RF_CHECK(context_ != nullptr);
  RF_CHECK(EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, Raw(key.data()),
                              nullptr) == 1);
}

Gmac::~Gmac() = default;
Gmac::Gmac(Gmac&& other) noexcept = default;
Gmac& Gmac::operator=(Gmac&& other) noexcept = default;

FrameTag Gmac::Tag(uint32_t purpose, uint64_t number, std::span<const std::byte> bytes) {
  std::array<std::byte, 12> nonce;
  WireWriter(nonce.data()).Put(purpose).Put(number);
  EVP_CIPHER_CTX* const context = context_.get();
  RF_CHECK(EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, Raw(nonce.data())) == 1);
  int written = 0;
  while (!bytes.empty()) {
    const size_t piece = std::min<size_t>(bytes.size(), INT_MAX / 2);
    RF_CHECK(EVP_EncryptUpdate(context, nullptr, &written, Raw(bytes.data()),
                               static_cast<int>(piece)) == 1);
    bytes = bytes.subspan(piece);
  }
  FrameTag tag;
  RF_CHECK(EVP_EncryptFinal_ex(context, Raw(tag.data()), &written) == 1);
  RF_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                               tag.data()) == 1);
  return tag;
}

}  // namespace ringfill
