#include "engine/comm/tcp/frame.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/comm/tcp/wire.h"

namespace ringfill {
namespace {

constexpr uint32_t kMagic = 0x4D524652;  // "RFRM"
constexpr uint16_t kVersion = 1;
constexpr uint32_t kPayloadPurpose = 1, kHeaderPurpose = 2;
constexpr size_t kTagBytes = sizeof(FrameTag);
constexpr size_t kProvenHeaderBytes = kFrameHeaderBytes - kTagBytes;

absl::Status Refused(std::string_view why) {
  return absl::DataLossError(absl::StrCat("frame refused: ", std::string(why)));
}

}  // namespace

FrameHeaderBytes FrameSealer::Seal(FrameHeader header, std::span<const std::byte> payload) {
  RF_CHECK(payload.size() <= kMaxFramePayload);
  FrameHeaderBytes bytes;
  WireWriter(bytes.data())
      .Put(kMagic)
      .Put(kVersion)
      .Put(header.type)
      .Put(static_cast<uint32_t>(payload.size()))
      .Put(header.tag)
      .Put(sequence_)
      .Put(header.message_bytes)
      .Put(gmac_.Tag(kPayloadPurpose, sequence_, payload));
  const FrameTag tag =
      gmac_.Tag(kHeaderPurpose, sequence_, std::span(bytes).first(kProvenHeaderBytes));
  std::memcpy(bytes.data() + kProvenHeaderBytes, tag.data(), kTagBytes);
  ++sequence_;
  return bytes;
}

std::array<std::span<std::byte>, 2> FrameDecoder::Space() {
  const std::span<std::byte> ahead = std::span(ahead_).subspan(end_);
  if (!in_payload_) return {ahead, {}};
  return {payload_.subspan(filled_), ahead};
}

absl::Status FrameDecoder::Advance(size_t bytes, FrameSink& sink) {
  if (!failure_.ok()) return failure_;
  if (in_payload_) {
    const size_t direct = std::min(bytes, payload_.size() - filled_);
    filled_ += direct;
    bytes -= direct;
  }
  end_ += bytes;
  RF_CHECK(end_ <= kAheadBytes);
  failure_ = Parse(sink);
  if (begin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return failure_;
}

absl::Status FrameDecoder::Parse(FrameSink& sink) {
  for (;;) {
    if (in_payload_) {
      const size_t take = std::min(payload_.size() - filled_, end_ - begin_);
      if (take > 0) std::memcpy(payload_.data() + filled_, ahead_.data() + begin_, take);
      filled_ += take;
      begin_ += take;
      if (filled_ < payload_.size()) return absl::OkStatus();
      if (!EqualInConstantTime(payload_tag_, gmac_.Tag(kPayloadPurpose, sequence_, payload_))) {
        return Refused("its payload is not what was sent");
      }
      in_payload_ = false;
      ++sequence_;
      RF_RETURN_IF_ERROR(sink.OnFrame(header_));
    }
    if (end_ - begin_ < kFrameHeaderBytes) return absl::OkStatus();
    RF_RETURN_IF_ERROR(TakeHeader());
    RF_ASSIGN_OR_RETURN(payload_, sink.OnHeader(header_));
    RF_CHECK(payload_.size() == header_.length);
    filled_ = 0;
    in_payload_ = true;
  }
}

absl::Status FrameDecoder::TakeHeader() {
  const std::span<const std::byte> bytes = std::span(ahead_).subspan(begin_, kFrameHeaderBytes);
  begin_ += kFrameHeaderBytes;
  WireReader reader(bytes.data());
  if (reader.Get<uint32_t>() != kMagic) return Refused("it is none of this protocol");
  const uint16_t version = reader.Get<uint16_t>();
  if (version != kVersion) return Refused(absl::StrCat("its version is ", version));
  header_.type = reader.Get<uint16_t>();
  header_.length = reader.Get<uint32_t>();
  header_.tag = reader.Get<uint32_t>();
  header_.sequence = reader.Get<uint64_t>();
  header_.message_bytes = reader.Get<uint64_t>();
  payload_tag_ = reader.Get<FrameTag>();
  const FrameTag tag = reader.Get<FrameTag>();
  if (header_.sequence != sequence_) {
    return Refused(absl::StrCat("it is number ", header_.sequence, ", expected ", sequence_));
  }
  if (!EqualInConstantTime(tag,
                           gmac_.Tag(kHeaderPurpose, sequence_, bytes.first(kProvenHeaderBytes)))) {
    return Refused("its header is not what was sent");
  }
  if (header_.length > kMaxFramePayload || header_.length > header_.message_bytes) {
    return Refused(absl::StrCat("its length is ", header_.length));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
