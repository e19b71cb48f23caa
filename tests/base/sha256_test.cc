#include "base/sha256.h"

#include <string_view>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(ToHex(Sha256().Finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.Add(Bytes("ab"));
  hash.Add(Bytes("c"));
  EXPECT_EQ(ToHex(hash.Finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace ringfill
