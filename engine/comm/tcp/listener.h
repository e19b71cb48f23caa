// Connections between processes of one deployment, proven before they are handed out. For `stop`
// see socket.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/tcp/handshake.h"
#include "engine/comm/tcp/socket.h"

namespace ringfill {

// A connection both of whose ends have proven that they know the secret.
struct ProvenSocket {
  Fd socket;
  SessionKeys keys;
  PeerClaims peer;
  std::string address;  // of the peer
};

// Calls `address` ("host:port") and proves both ends; one try. UNAVAILABLE when nobody is there or
// the peer closed the connection, which it also does when our proof is wrong; UNAUTHENTICATED when
// the peer's is; DEADLINE_EXCEEDED.
absl::StatusOr<ProvenSocket> ConnectProven(const std::string& address,
                                           const Credentials& credentials, Instant deadline,
                                           const Waker* stop = nullptr);
// Whether a status of ConnectProven says that the peer closed the connection before it had proven
// itself: most often it knows another secret.
bool ClosedInHandshake(const absl::Status& status);
// The same, again and again until the deadline while the peer is UNAVAILABLE.
absl::StatusOr<ProvenSocket> ConnectProvenRetrying(const std::string& address,
                                                   const Credentials& credentials, Instant deadline,
                                                   const Waker* stop = nullptr);

// Accept is called by one thread at a time, Close by any.
class Listener {
 public:
  // Callers whose handshake is under way; when more come, the oldest is dropped.
  static constexpr size_t kMaxPending = 64;
  // A caller that has not proven itself by then is dropped.
  static constexpr Duration kHandshakeLimit = std::chrono::seconds(5);

  // Listens on loopback unless told otherwise; port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(std::string_view address = "127.0.0.1:0");

  // Where it listens, as "host:port".
  const std::string& address() const { return address_; }
  // The next caller that proves itself. Those that fail are dropped without an answer and do not
  // hold up the others. DEADLINE_EXCEEDED; CANCELLED after Close.
  absl::StatusOr<ProvenSocket> Accept(const Credentials& credentials, Instant deadline,
                                      const Waker* stop = nullptr);
  // Ends a waiting and every later Accept.
  void Close();
  // Callers dropped so far.
  int64_t refused() const { return refused_.load(); }

 private:
  struct Pending {
    Accepted caller;
    Handshake handshake;
    Instant limit;
    std::vector<std::byte> message;  // read so far
  };

  Listener(Fd socket, std::string address);
  absl::Status AcceptCallers(const Credentials& credentials);
  // Reads what has come; false when the caller is to be dropped.
  bool Progress(Pending& pending);
  void DropLate(Instant now);

  const Fd socket_;
  const std::string address_;
  Waker waker_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> refused_{0};
  Credentials credentials_;  // of the pending ones
  std::deque<Pending> pending_;
};

}  // namespace ringfill
