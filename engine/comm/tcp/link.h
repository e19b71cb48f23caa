// One rank's connection to another rank of its group: frames on their way out, and the bytes that
// come in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/tcp/frame.h"
#include "engine/comm/tcp/listener.h"

namespace ringfill {

enum class FrameType : uint16_t {
  kReady = 1,    // the receiver of an exchange has room; message_bytes: how many it expects
  kExchange,     // a piece of an exchange, sent after kReady
  kGatherReady,  // the same for large parts of all-gathers
  kGather,       // a piece of an all-gather's part
  kAbort,        // payload: EncodeStatus
  kBeat,         // nothing but a sign of life
};

// At most kMaxStatusBytes; the message is cut to fit.
inline constexpr size_t kMaxStatusBytes = 1028;
std::vector<std::byte> EncodeStatus(const absl::Status& status);
// Never OK. REQUIRES: bytes.size() <= kMaxStatusBytes.
absl::Status DecodeStatus(std::span<const std::byte> bytes);

// Not thread-safe.
class Link {
 public:
  explicit Link(ProvenSocket proven);
  // Reads what has arrived, so that the kernel does not take back what was sent last.
  ~Link();

  int fd() const { return socket_.get(); }

  // A frame without payload.
  void Announce(FrameType type, uint32_t tag, uint64_t bytes);

  // Two messages may be on their way out at once, one a stream; the pieces of both take turns. The
  // bytes stay where they are until `sending` is false or Abort.
  enum class Stream { kExchange, kGather };
  void StartSending(Stream stream, uint32_t tag, std::span<const std::byte> bytes);
  bool sending(Stream stream) const { return outgoing_[Index(stream)].active; }
  // From the first byte of the stream's last message to its last, as the socket took them.
  Duration send_time(Stream stream) const;

  bool wants_to_write() const { return frame_left() > 0 || HasNext(); }
  // Writes as much as the socket takes.
  absl::Status Write();
  // That the socket has taken so far.
  uint64_t bytes_written() const { return bytes_written_; }

  // Stops sending; what was begun is finished from a copy, then the peer is told and sees the end.
  void Abort(const absl::Status& status);

  // Reads what has come, up to a bound.
  struct ReadResult {
    bool any = false;     // something came
    bool end = false;     // the peer has closed its side
    absl::Status socket;  // UNAVAILABLE when the connection broke
    absl::Status frames;  // DATA_LOSS, or what the sink returned
  };
  ReadResult Read(FrameSink& sink);
  bool mid_frame() const { return decoder_.mid_frame(); }

 private:
  struct Outgoing {
    bool active = false;
    FrameHeader header;
    std::span<const std::byte> left;
    Instant first, last;
  };
  struct Small {
    FrameHeader header;
    std::vector<std::byte> payload;
  };

  static size_t Index(Stream stream) { return static_cast<size_t>(stream); }
  size_t frame_left() const { return head_.size() - head_sent_ + body_.size(); }
  bool HasNext() const;
  // Seals the next frame; false when there is none.
  bool NextFrame();
  void Seal(const FrameHeader& header, std::span<const std::byte> payload);
  void FrameSent();

  Fd socket_;
  FrameSealer sealer_;
  FrameDecoder decoder_;

  uint64_t bytes_written_ = 0;
  std::deque<Small> small_;
  std::array<Outgoing, 2> outgoing_;
  size_t turn_ = 0;
  // The frame on its way.
  FrameHeaderBytes head_{};
  size_t head_sent_ = kFrameHeaderBytes;
  std::span<const std::byte> body_;  // unsent
  std::vector<std::byte> own_body_;  // what body_ points to, when not the caller's
  std::optional<size_t> source_;     // in outgoing_
  bool aborted_ = false, ended_ = false;
};

}  // namespace ringfill
