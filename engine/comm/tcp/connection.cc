#include "engine/comm/tcp/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfill {

Connection::Connection(ProvenSocket proven, const Options& options)
    : socket_(std::move(proven.socket)),
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

absl::Status Connection::Send(uint16_t type, std::span<const std::byte> payload, Instant deadline) {
  MutexLock lock(&send_mutex_);
  return SendAll(type, payload, deadline);
}

absl::StatusOr<bool> Connection::SendSome(uint16_t type, std::span<const std::byte> payload) {
  MutexLock lock(&send_mutex_);
  RF_RETURN_IF_ERROR(SendAll(type, payload, std::nullopt));
  return rest_.empty();
}

absl::Status Connection::Flush(Instant deadline) {
  MutexLock lock(&send_mutex_);
  if (send_failure_.ok()) send_failure_ = PutRest(deadline);
  return send_failure_;
}

absl::Status Connection::SendAll(uint16_t type, std::span<const std::byte> payload,
                                 std::optional<Instant> deadline) {
  if (!send_failure_.ok()) return send_failure_;
  FrameHeader header;
  header.type = type;
  header.message_bytes = payload.size();
  header.tag = messages_sent_++;
  absl::Status status = PutRest(deadline);
  if (status.ok() && payload.empty()) status = SendFrame(header, {}, deadline);
  while (status.ok() && !payload.empty()) {
    const size_t piece = std::min<size_t>(payload.size(), kMaxFramePayload);
    status = SendFrame(header, payload.first(piece), deadline);
    payload = payload.subspan(piece);
  }
  send_failure_ = status;
  return status;
}

absl::Status Connection::SendFrame(const FrameHeader& header, std::span<const std::byte> payload,
                                   std::optional<Instant> deadline) {
  FrameHeaderBytes sealed = sealer_.Seal(header, payload);
  iovec parts[2] = {{sealed.data(), sealed.size()},
                    {const_cast<std::byte*>(payload.data()), payload.size()}};
  return Put(parts, deadline);
}

absl::Status Connection::PutRest(std::optional<Instant> deadline) {
  if (rest_.empty()) return absl::OkStatus();
  std::vector<std::byte> rest = std::exchange(rest_, {});
  iovec part = {rest.data(), rest.size()};
  return Put(std::span(&part, 1), deadline);
}

absl::Status Connection::Put(std::span<iovec> parts, std::optional<Instant> deadline) {
  const auto left = [&parts] {
    size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    return bytes;
  };
  // Bytes that wait already go first.
  while (rest_.empty() && left() > 0) {
    if (closed_) return absl::UnavailableError("the connection was closed");
    RF_ASSIGN_OR_RETURN(size_t put, WriteSome(socket_, parts));
    if (put == 0 && !deadline.has_value()) break;
    if (put == 0) {
      RF_RETURN_IF_ERROR(
          AwaitSocket(socket_, POLLOUT, *deadline, absl::StrCat("a message to ", address_)));
    }
    for (iovec& part : parts) {
      const size_t moved = std::min(put, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + moved;
      part.iov_len -= moved;
      put -= moved;
    }
  }
  for (const iovec& part : parts) {
    const auto* const bytes = static_cast<const std::byte*>(part.iov_base);
    rest_.insert(rest_.end(), bytes, bytes + part.iov_len);
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
  bytes_received_ += static_cast<int64_t>(moved.bytes);
  return decoder_.Advance(moved.bytes, assembler_);
}

void Connection::EndSending() { ShutdownWrites(socket_); }

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
