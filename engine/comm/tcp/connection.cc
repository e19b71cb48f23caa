#include "engine/comm/tcp/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfill {

Connection::Connection(ProvenSocket proven, const Options& options)
    : socket_(std::move(proven.socket)),
      peer_(proven.peer),
      address_(std::move(proven.address)),
      options_(options),
      sealer_(proven.keys.send),
      decoder_(proven.keys.receive) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Connect(const std::string& address,
                                                                const Credentials& credentials,
                                                                Instant deadline) {
  RF_ASSIGN_OR_RETURN(ProvenSocket proven, ConnectProvenRetrying(address, credentials, deadline));
  return std::make_unique<Connection>(std::move(proven));
}

absl::Status Connection::Send(uint16_t type, std::span<const std::span<const std::byte>> parts,
                              Instant deadline) {
  FrameHeader header;
  header.type = type;
  for (const auto& part : parts) header.message_bytes += part.size();
  MutexLock lock(&send_mutex_);
  if (!send_failure_.ok()) return send_failure_;
  header.tag = messages_sent_++;
  absl::Status status;
  if (header.message_bytes == 0) status = SendFrame(header, {}, deadline);
  std::vector<std::byte> joined;
  if (parts.size() > 1 && header.message_bytes > 0) {
    joined.reserve(header.message_bytes);
    for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  }
  std::span<const std::byte> left = parts.size() == 1 ? parts[0] : joined;
  while (status.ok() && !left.empty()) {
    const size_t piece = std::min<size_t>(left.size(), kMaxFramePayload);
    status = SendFrame(header, left.first(piece), deadline);
    left = left.subspan(piece);
  }
  send_failure_ = status;
  return status;
}

absl::Status Connection::SendFrame(const FrameHeader& header, std::span<const std::byte> payload,
                                   Instant deadline) {
  FrameHeaderBytes sealed = sealer_.Seal(header, payload);
  iovec parts[2] = {{sealed.data(), sealed.size()},
                    {const_cast<std::byte*>(payload.data()), payload.size()}};
  while (parts[0].iov_len + parts[1].iov_len > 0) {
    if (closed_) return absl::UnavailableError("the connection was closed");
    RF_ASSIGN_OR_RETURN(size_t put, WriteSome(socket_, parts));
    if (put == 0) {
      RF_RETURN_IF_ERROR(
          AwaitSocket(socket_, POLLOUT, deadline, absl::StrCat("a message to ", address_)));
    }
    for (iovec& part : parts) {
      const size_t taken = std::min(put, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
      part.iov_len -= taken;
      put -= taken;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Connection::Message> Connection::Receive(Instant deadline) {
  for (;;) {
    if (closed_) return absl::UnavailableError("the connection was closed");
    if (!messages_.empty()) {
      Message message = std::move(messages_.front());
      messages_.pop_front();
      return message;
    }
    if (!receive_failure_.ok()) return receive_failure_;
    RF_RETURN_IF_ERROR(
        AwaitSocket(socket_, POLLIN, deadline, absl::StrCat("a message from ", address_)));
    receive_failure_ = ReadMore();
  }
}

absl::Status Connection::ReadMore() {
  const auto space = decoder_.Space();
  const iovec parts[2] = {{space[0].data(), space[0].size()}, {space[1].data(), space[1].size()}};
  RF_ASSIGN_OR_RETURN(const Moved moved, ReadSome(socket_, parts));
  if (moved.end) {
    const bool cut = decoder_.mid_frame() || assembler_.mid_message();
    return absl::UnavailableError(
        absl::StrCat(address_, " closed the connection", cut ? " in the middle of a message" : ""));
  }
  return decoder_.Advance(moved.bytes, assembler_);
}

void Connection::Close() {
  closed_ = true;
  ShutdownBoth(socket_);
}

absl::StatusOr<std::span<std::byte>> Connection::Assembler::OnHeader(const FrameHeader& header) {
  if (!mid_message_) {
    if (header.message_bytes > connection_.options_.max_message_bytes) {
      return absl::DataLossError(
          absl::StrCat("message refused: it has ", header.message_bytes, " bytes, at most ",
                       connection_.options_.max_message_bytes, " are taken"));
    }
    message_.type = header.type;
    message_.payload.resize(header.message_bytes);
    filled_ = 0;
    mid_message_ = true;
  }
  if (header.type != message_.type || header.message_bytes != message_.payload.size() ||
      header.length > message_.payload.size() - filled_) {
    return absl::DataLossError("message refused: its pieces do not fit");
  }
  return std::span(message_.payload).subspan(filled_, header.length);
}

absl::Status Connection::Assembler::OnFrame(const FrameHeader& header) {
  filled_ += header.length;
  if (filled_ < message_.payload.size()) return absl::OkStatus();
  mid_message_ = false;
  connection_.messages_.push_back(std::exchange(message_, {}));
  return absl::OkStatus();
}

}  // namespace ringfill
