#include "engine/comm/tcp/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/comm/tcp/wire.h"
#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {
namespace {

const FrameKey kKey = {std::byte{1}, std::byte{2}, std::byte{3}};
const FrameKey kOtherKey = {std::byte{1}, std::byte{2}, std::byte{4}};

Bytes SomeBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void ExpectRefused(const Bytes& stream, const FrameKey& key, size_t good_frames,
                   const std::string& what) {
  FrameDecoder decoder(key);
  CollectingSink sink;
  const absl::Status status = Feed(decoder, sink, stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what << ": " << status;
  EXPECT_EQ(sink.got.size(), good_frames) << what;
  EXPECT_EQ(decoder.Advance(0, sink), status) << what << ": the failure is not final";
}

TEST(FrameTest, FramesComeBackHoweverTheStreamIsCut) {
  const size_t sizes[] = {0, 1, 63, 64, 4095, 5000, kMaxFramePayload};
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{4096}, SIZE_MAX}) {
    FrameSealer sealer(kKey);
    Bytes stream;
    for (size_t i = 0; i < std::size(sizes); ++i) {
      AppendFrame(sealer, stream, static_cast<uint16_t>(i), SomeBytes(sizes[i], i));
    }
    FrameDecoder decoder(kKey);
    CollectingSink sink;
    EXPECT_TRUE(Feed(decoder, sink, stream, piece).ok());
    EXPECT_FALSE(decoder.mid_frame());
    ASSERT_EQ(sink.got.size(), std::size(sizes));
    for (size_t i = 0; i < std::size(sizes); ++i) {
      EXPECT_EQ(sink.got[i].header.type, i);
      EXPECT_EQ(sink.got[i].header.sequence, i);
      EXPECT_EQ(sink.got[i].header.message_bytes, sizes[i]);
      EXPECT_EQ(sink.got[i].payload, SomeBytes(sizes[i], i));
    }
  }
}

TEST(FrameTest, EveryBitMatters) {
  FrameSealer sealer(kKey);
  Bytes stream;
  AppendFrame(sealer, stream, 1, BytesOf("first"));
  const size_t first = stream.size();
  AppendFrame(sealer, stream, 2, BytesOf("second"));
  for (size_t bit = first * 8; bit < stream.size() * 8; ++bit) {
    Bytes altered = stream;
    altered[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ExpectRefused(altered, kKey, 1, "bit " + std::to_string(bit));
  }
}

TEST(FrameTest, EveryCutShows) {
  FrameSealer sealer(kKey);
  Bytes stream;
  AppendFrame(sealer, stream, 1, BytesOf("first"));
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    FrameDecoder decoder(kKey);
    CollectingSink sink;
    EXPECT_TRUE(Feed(decoder, sink, std::span(stream).first(cut)).ok());
    EXPECT_TRUE(decoder.mid_frame()) << cut;
    EXPECT_TRUE(sink.got.empty()) << cut;
  }
}

TEST(FrameTest, ReplayedReorderedAndForeignFramesAreRefused) {
  FrameSealer sealer(kKey);
  Bytes frames[3];
  for (int i = 0; i < 3; ++i) AppendFrame(sealer, frames[i], i, BytesOf("payload"));
  const auto joined = [&](std::initializer_list<int> order) {
    Bytes stream;
    for (const int i : order) stream.insert(stream.end(), frames[i].begin(), frames[i].end());
    return stream;
  };
  ExpectRefused(joined({0, 0}), kKey, 1, "replayed");
  ExpectRefused(joined({0, 1, 0}), kKey, 2, "replayed later");
  ExpectRefused(joined({0, 2}), kKey, 1, "one left out");
  ExpectRefused(joined({1}), kKey, 0, "the first left out");
  ExpectRefused(joined({0}), kOtherKey, 0, "of another connection");
  Bytes doubled = joined({0, 1});
  doubled.insert(doubled.begin() + 70, doubled[69]);
  ExpectRefused(doubled, kKey, 0, "a byte doubled");
}

TEST(FrameTest, PayloadsDoNotFitOtherHeaders) {
  // Two frames of one number and size, from two connections that share a key by mistake.
  FrameSealer one(kKey), two(kKey);
  Bytes a, b;
  AppendFrame(one, a, 1, BytesOf("aaaa"));
  AppendFrame(two, b, 1, BytesOf("bbbb"));
  std::copy(b.begin() + kFrameHeaderBytes, b.end(), a.begin() + kFrameHeaderBytes);
  ExpectRefused(a, kKey, 0, "a payload of another frame");
}

// Even who knows the key cannot make the decoder wait for, or make room for, more than the bound.
TEST(FrameTest, LengthsAreBoundedBeforeTheyAreUsed) {
  const auto header_of = [](uint32_t length, uint64_t message_bytes) {
    Gmac gmac(kKey);
    Bytes bytes(kFrameHeaderBytes);
    WireWriter(bytes.data())
        .Put(uint32_t{0x4D524652})
        .Put(uint16_t{1})
        .Put(uint16_t{1})
        .Put(length)
        .Put(uint32_t{0})
        .Put(uint64_t{0})
        .Put(message_bytes)
        .Put(FrameTag{});
    const FrameTag tag = gmac.Tag(2, 0, std::span(bytes).first(48));
    std::copy(tag.begin(), tag.end(), bytes.begin() + 48);
    return bytes;
  };
  FrameDecoder decoder(kKey);
  CollectingSink sink;
  EXPECT_TRUE(Feed(decoder, sink, header_of(100, 100)).ok());  // the header is one
  EXPECT_EQ(sink.current.size(), 100u);
  ExpectRefused(header_of(kMaxFramePayload + 1, kMaxFramePayload + 1), kKey, 0, "too long");
  ExpectRefused(header_of(0xffffffff, 0xffffffff), kKey, 0, "4 GiB");
  ExpectRefused(header_of(101, 100), kKey, 0, "more than its message");
}

TEST(FrameTest, WhatTheSinkRefusesEndsTheStream) {
  struct Refusing final : FrameSink {
    absl::StatusOr<std::span<std::byte>> OnHeader(const FrameHeader&) override {
      return absl::ResourceExhaustedError("no room");
    }
    absl::Status OnFrame(const FrameHeader&) override { return absl::OkStatus(); }
  };
  FrameSealer sealer(kKey);
  Bytes stream;
  AppendFrame(sealer, stream, 1, BytesOf("x"));
  FrameDecoder decoder(kKey);
  Refusing sink;
  EXPECT_EQ(Feed(decoder, sink, stream).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(decoder.Advance(0, sink).code(), absl::StatusCode::kResourceExhausted);
}

TEST(CryptoTest, KnownAnswers) {
  // RFC 4231, test case 2.
  const Digest digest =
      HmacSha256(BytesOf("Jefe"), {BytesOf("what do ya want "), BytesOf("for nothing?")});
  const uint8_t expected[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e};
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(std::to_integer<int>(digest[i]), expected[i]);
  }
  // NIST GCM test case 13: zero key, zero nonce, no data.
  Gmac gmac(FrameKey{});
  const FrameTag tag = gmac.Tag(0, 0, {});
  const uint8_t expected_tag[] = {0x53, 0x0f, 0x8a, 0xfb, 0xc7, 0x45, 0x36, 0xb9};
  for (size_t i = 0; i < std::size(expected_tag); ++i) {
    EXPECT_EQ(std::to_integer<int>(tag[i]), expected_tag[i]);
  }
}

}  // namespace
}  // namespace ringfill
