// Any bytes as what a peer sends: to either side of a handshake, and to a decoder of frames, as
// they are or put into frames by somebody who knows the key. The first byte chooses which, the
// second how the stream is cut.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "engine/comm/tcp/frame.h"
#include "engine/comm/tcp/handshake.h"
#include "engine/comm/tcp/link.h"

namespace ringfill {
namespace {

const FrameKey kKey = {};

// Holds the decoder to its promises.
struct CheckingSink final : FrameSink {
  bool in_frame = false;
  uint64_t frames = 0;
  std::vector<std::byte> payload;

  absl::StatusOr<std::span<std::byte>> OnHeader(const FrameHeader& header) override {
    RF_CHECK(!in_frame && header.sequence == frames);
    RF_CHECK(header.length <= kMaxFramePayload && header.length <= header.message_bytes);
    in_frame = true;
    payload.assign(header.length, std::byte{0});
    return std::span(payload);
  }
  absl::Status OnFrame(const FrameHeader&) override {
    RF_CHECK(in_frame);
    in_frame = false;
    ++frames;
    if (payload.size() <= kMaxStatusBytes) RF_CHECK(!DecodeStatus(payload).ok());
    return absl::OkStatus();
  }
};

uint64_t Decode(std::span<const std::byte> stream, size_t piece) {
  FrameDecoder decoder(kKey);
  CheckingSink sink;
  while (!stream.empty()) {
    const std::span<std::byte> space = decoder.Space()[0];
    const size_t bytes = std::min({space.size(), stream.size(), piece});
    if (bytes > 0) std::memcpy(space.data(), stream.data(), bytes);
    stream = stream.subspan(bytes);
    if (!decoder.Advance(bytes, sink).ok()) {
      RF_CHECK(!decoder.Advance(0, sink).ok());
      break;
    }
  }
  return sink.frames;
}

// Frames whose payloads are pieces of `input`, each after a byte that says how long it is; the
// last byte of all says which byte of the stream to turn over, if any.
void DecodeSealed(std::span<const std::byte> input, size_t piece) {
  FrameSealer sealer(kKey);
  std::vector<std::byte> stream;
  uint64_t frames = 0;
  while (input.size() > 1) {
    const size_t bytes = std::min<size_t>(std::to_integer<size_t>(input[0]), input.size() - 1);
    const std::span<const std::byte> payload = input.subspan(1, bytes);
    FrameHeader header;
    header.message_bytes = bytes;
    const FrameHeaderBytes sealed = sealer.Seal(header, payload);
    stream.insert(stream.end(), sealed.begin(), sealed.end());
    stream.insert(stream.end(), payload.begin(), payload.end());
    input = input.subspan(1 + bytes);
    ++frames;
  }
  RF_CHECK(Decode(stream, piece) == frames);
  if (stream.empty() || input.empty()) return;
  stream[std::to_integer<size_t>(input[0]) % stream.size()] ^= std::byte{0x40};
  RF_CHECK(Decode(stream, piece) < frames);
}

// Nobody who does not know the secret gets through.
void Shake(Handshake::Side side, std::span<const std::byte> input) {
  static const Secret* const secret = new Secret(Secret::Random());
  Credentials credentials;
  credentials.secret = secret;
  Handshake handshake(side, credentials);
  while (handshake.wanted() > 0 && input.size() >= handshake.wanted()) {
    const std::span<const std::byte> message = input.first(handshake.wanted());
    input = input.subspan(message.size());
    RF_CHECK(handshake.TakeOutput().size() <= Handshake::kMaxMessageBytes);
    if (!handshake.Receive(message).ok()) {
      RF_CHECK(handshake.wanted() == 0 && handshake.TakeOutput().empty());
    }
  }
  RF_CHECK(!handshake.done());
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  if (size < 2) return 0;
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size)).subspan(2);
  const size_t piece = 1 + data[1];
  switch (data[0] % 4) {
    case 0:
      Decode(input, piece);
      break;
    case 1:
      DecodeSealed(input, piece);
      break;
    case 2:
      Shake(Handshake::Side::kInitiator, input);
      break;
    default:
      Shake(Handshake::Side::kAcceptor, input);
      break;
  }
  return 0;
}
