// Both ends of a handshake and of frames in memory, for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/comm/tcp/frame.h"
#include "engine/comm/tcp/handshake.h"

namespace ringfill {

using Bytes = std::vector<std::byte>;

inline const Secret& TestSecret() {
  static const Secret secret = Secret::FromBytes("a secret of the tests").value();
  return secret;
}

inline Credentials RankCredentials(const Secret& secret, uint32_t rank, uint64_t epoch = 5) {
  Credentials credentials;
  credentials.secret = &secret;
  credentials.own = {PeerRole::kRank, 77, epoch, rank, 2};
  return credentials;
}

inline Bytes BytesOf(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Takes whole messages of one frame each.
struct CollectingSink final : FrameSink {
  struct Got {
    FrameHeader header;
    Bytes payload;
  };
  std::vector<Got> got;
  Bytes current;

  absl::StatusOr<std::span<std::byte>> OnHeader(const FrameHeader& header) override {
    current.assign(header.length, std::byte{0});
    return std::span(current);
  }
  absl::Status OnFrame(const FrameHeader& header) override {
    got.push_back({header, current});
    return absl::OkStatus();
  }
};

// Gives `stream` to the decoder in pieces of at most `piece` bytes.
inline absl::Status Feed(FrameDecoder& decoder, FrameSink& sink, std::span<const std::byte> stream,
                         size_t piece = SIZE_MAX) {
  while (!stream.empty()) {
    size_t given = 0;
    for (const std::span<std::byte> space : decoder.Space()) {
      const size_t bytes = std::min({space.size(), stream.size(), piece - given});
      if (bytes > 0) std::memcpy(space.data(), stream.data(), bytes);
      stream = stream.subspan(bytes);
      given += bytes;
      if (bytes < space.size()) break;
    }
    if (absl::Status status = decoder.Advance(given, sink); !status.ok()) return status;
  }
  return absl::OkStatus();
}

inline void AppendFrame(FrameSealer& sealer, Bytes& stream, uint16_t type,
                        std::span<const std::byte> payload) {
  FrameHeader header;
  header.type = type;
  header.message_bytes = payload.size();
  const FrameHeaderBytes sealed = sealer.Seal(header, payload);
  stream.insert(stream.end(), sealed.begin(), sealed.end());
  stream.insert(stream.end(), payload.begin(), payload.end());
}

}  // namespace ringfill
