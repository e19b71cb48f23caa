// Messages between two processes over a proven connection: the control channel of leader and
// worker.
//
//   RF_ASSIGN_OR_RETURN(auto connection, Connection::Connect("127.0.0.1:7000", credentials,
//   limit)); RF_RETURN_IF_ERROR(connection->Send(kPlan, bytes, limit));
//   RF_ASSIGN_OR_RETURN(Connection::Message message, connection->Receive(limit));
//
// The other end:
//
//   RF_ASSIGN_OR_RETURN(ProvenSocket socket, listener.Accept(credentials, limit));
//   Connection connection(std::move(socket));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/comm/tcp/frame.h"
#include "engine/comm/tcp/listener.h"

namespace ringfill {

// Send, SendSome and Flush may be called by any threads, Receive by one at a time, Close by any.
class Connection {
 public:
  struct Options {
    size_t max_message_bytes = size_t{256} << 20;  // received; larger ones are refused
  };
  struct Message {
    uint16_t type = 0;  // the caller's own numbers
    std::vector<std::byte> payload;
  };

  explicit Connection(ProvenSocket proven) : Connection(std::move(proven), Options()) {}
  Connection(ProvenSocket proven, const Options& options);
  // See ConnectProvenRetrying.
  static absl::StatusOr<std::unique_ptr<Connection>> Connect(const std::string& address,
                                                             const Credentials& credentials,
                                                             Instant deadline);

  // Sends one message; may block until the peer reads. UNAVAILABLE when the peer has gone or Close
  // was called, DEADLINE_EXCEEDED; either way later calls fail too, since part of the message may
  // be on its way.
  absl::Status Send(uint16_t type, std::span<const std::byte> payload, Instant deadline);
  // Sends what the socket takes at once and keeps a copy of the rest, which the next call of any
  // of the three sends first; false when there is a rest. Never waits for the peer.
  absl::StatusOr<bool> SendSome(uint16_t type, std::span<const std::byte> payload);
  // Sends what SendSome has kept; fails as Send does.
  absl::Status Flush(Instant deadline);

  // The peer's next message, whole and proven. DEADLINE_EXCEEDED: nothing is lost, call again.
  // UNAVAILABLE when the peer has gone or Close was called, DATA_LOSS when the bytes are not what
  // it sent; both for good.
  absl::StatusOr<Message> Receive(Instant deadline);
  // How much has come, parts of messages included. For the thread that receives.
  int64_t bytes_received() const { return bytes_received_; }
  // For what the socket knows: its address.
  int fd() const { return socket_.get(); }

  // What was sent was the last: the peer sees the end after it. Receive goes on.
  void EndSending();
  // Ends every waiting and later call here, and the connection for the peer.
  void Close();

 private:
  class Assembler final : public FrameSink {
   public:
    explicit Assembler(Connection& connection) : connection_(connection) {}
    absl::StatusOr<std::span<std::byte>> OnHeader(const FrameHeader& header) override;
    absl::Status OnFrame(const FrameHeader& header) override;
    bool mid_message() const { return mid_message_; }

   private:
    Connection& connection_;
    bool mid_message_ = false;
    Message message_;
    size_t filled_ = 0;
  };

  absl::Status SendAll(uint16_t type, std::span<const std::byte> payload,
                       std::optional<Instant> deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  absl::Status SendFrame(const FrameHeader& header, std::span<const std::byte> payload,
                         std::optional<Instant> deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Without a deadline what the socket does not take is added to rest_.
  absl::Status Put(std::span<iovec> parts, std::optional<Instant> deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  absl::Status PutRest(std::optional<Instant> deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Reads what there is.
  absl::Status ReadMore();

  const Fd socket_;
  const std::string address_;
  const Options options_;
  std::atomic<bool> closed_{false};

  Mutex send_mutex_;
  FrameSealer sealer_ ABSL_GUARDED_BY(send_mutex_);
  absl::Status send_failure_ ABSL_GUARDED_BY(send_mutex_);
  uint32_t messages_sent_ ABSL_GUARDED_BY(send_mutex_) = 0;
  std::vector<std::byte> rest_ ABSL_GUARDED_BY(send_mutex_);  // sealed, not yet taken

  // Of the receiving thread.
  FrameDecoder decoder_;
  Assembler assembler_{*this};
  absl::Status receive_failure_;
  int64_t bytes_received_ = 0;
  std::deque<Message> messages_;  // at most as many as fit the decoder's look-ahead
};

}  // namespace ringfill
