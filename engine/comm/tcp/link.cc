#include "engine/comm/tcp/link.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/comm/tcp/wire.h"

namespace ringfill {
namespace {

// Of one Read, so that no peer keeps the others waiting.
constexpr int kMaxReads = 16;

}  // namespace

std::vector<std::byte> EncodeStatus(const absl::Status& status) {
  const absl::string_view message = status.message().substr(0, kMaxStatusBytes - sizeof(uint32_t));
  std::vector<std::byte> bytes(sizeof(uint32_t) + message.size());
  WireWriter(bytes.data()).Put(static_cast<uint32_t>(status.code()));
  std::transform(message.begin(), message.end(), bytes.begin() + sizeof(uint32_t),
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

absl::Status DecodeStatus(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(uint32_t)) return absl::UnknownError("a peer aborted");
  const auto code = WireReader(bytes.data()).Get<uint32_t>();
  bytes = bytes.subspan(sizeof(uint32_t));
  const absl::string_view message(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool known = code >= 1 && code <= 16;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      message);
}

Link::Link(ProvenSocket proven)
    : socket_(std::move(proven.socket)), sealer_(proven.keys.send), decoder_(proven.keys.receive) {}

Link::~Link() {
  std::byte scratch[16 << 10];
  const iovec part = {scratch, sizeof(scratch)};
  for (int i = 0; i < 1024; ++i) {
    const absl::StatusOr<Moved> moved = ReadSome(socket_, std::span(&part, 1));
    if (!moved.ok() || moved->bytes == 0) break;
  }
}

void Link::Announce(FrameType type, uint32_t tag, uint64_t bytes) {
  FrameHeader header;
  header.type = static_cast<uint16_t>(type);
  header.tag = tag;
  header.message_bytes = bytes;
  small_.push_back({header, {}});
}

void Link::StartSending(Stream stream, uint32_t tag, std::span<const std::byte> bytes) {
  Outgoing& out = outgoing_[Index(stream)];
  RF_CHECK(!out.active);
  out.active = true;
  out.header.type = static_cast<uint16_t>(stream == Stream::kExchange ? FrameType::kExchange
                                                                      : FrameType::kGather);
  out.header.tag = tag;
  out.header.message_bytes = bytes.size();
  out.left = bytes;
  out.first = Clock::Real().Now();
}

Duration Link::send_time(Stream stream) const {
  const Outgoing& out = outgoing_[Index(stream)];
  return out.last - out.first;
}

bool Link::HasNext() const { return !small_.empty() || outgoing_[0].active || outgoing_[1].active; }

void Link::Seal(const FrameHeader& header, std::span<const std::byte> payload) {
  head_ = sealer_.Seal(header, payload);
  head_sent_ = 0;
  body_ = payload;
}

bool Link::NextFrame() {
  if (!small_.empty()) {
    own_body_ = std::move(small_.front().payload);
    Seal(small_.front().header, own_body_);
    small_.pop_front();
    return true;
  }
  for (size_t i = 0; i < outgoing_.size(); ++i) {
    const size_t index = (turn_ + i) % outgoing_.size();
    Outgoing& out = outgoing_[index];
    if (!out.active) continue;
    const size_t piece = std::min<size_t>(out.left.size(), kMaxFramePayload);
    Seal(out.header, out.left.first(piece));
    out.left = out.left.subspan(piece);
    source_ = index;
    turn_ = index + 1;
    return true;
  }
  return false;
}

void Link::FrameSent() {
  if (!source_.has_value()) return;
  Outgoing& out = outgoing_[*source_];
  source_.reset();
  if (!out.left.empty()) return;
  out.active = false;
  out.last = Clock::Real().Now();
}

absl::Status Link::Write() {
  while (frame_left() > 0 || NextFrame()) {
    const iovec parts[2] = {{head_.data() + head_sent_, head_.size() - head_sent_},
                            {const_cast<std::byte*>(body_.data()), body_.size()}};
    RF_ASSIGN_OR_RETURN(size_t put, WriteSome(socket_, parts));
    if (put == 0) return absl::OkStatus();
    bytes_written_ += put;
    const size_t of_head = std::min(put, head_.size() - head_sent_);
    head_sent_ += of_head;
    body_ = body_.subspan(put - of_head);
    if (frame_left() == 0) FrameSent();
  }
  if (aborted_ && !std::exchange(ended_, true)) ShutdownWrites(socket_);
  return absl::OkStatus();
}

void Link::Abort(const absl::Status& status) {
  if (!body_.empty() && source_.has_value()) {
    own_body_.assign(body_.begin(), body_.end());
    body_ = own_body_;
  }
  source_.reset();
  outgoing_ = {};
  small_.clear();
  Small abort;
  abort.payload = EncodeStatus(status);
  abort.header.type = static_cast<uint16_t>(FrameType::kAbort);
  abort.header.message_bytes = abort.payload.size();
  small_.push_back(std::move(abort));
  aborted_ = true;
}

Link::ReadResult Link::Read(FrameSink& sink) {
  ReadResult result;
  for (int i = 0; i < kMaxReads; ++i) {
    const auto space = decoder_.Space();
    const iovec parts[2] = {{space[0].data(), space[0].size()}, {space[1].data(), space[1].size()}};
    const absl::StatusOr<Moved> moved = ReadSome(socket_, parts);
    if (!moved.ok()) {
      result.socket = moved.status();
      return result;
    }
    result.end = moved->end;
    if (moved->bytes == 0) return result;
    result.any = true;
    result.frames = decoder_.Advance(moved->bytes, sink);
    if (!result.frames.ok() || moved->bytes < space[0].size() + space[1].size()) return result;
  }
  return result;
}

}  // namespace ringfill
