// The proof that both ends of a new connection know the deployment's secret, before any payload.
//
//   initiator -> acceptor   hello: who it says it is, a nonce
//   acceptor -> initiator   hello likewise
//   initiator -> acceptor   proof: HMAC(secret, "initiator" | both hellos)
//   acceptor -> initiator   proof: HMAC(secret, "acceptor" | both hellos | the other proof)
//
// The side that was called proves itself last, so that whoever cannot prove himself gets nothing
// but a nonce. Both nonces, sides and claims are under both proofs: recorded, reflected or altered
// messages fail. Each connection's frame keys are HMACs over the same hellos, one a direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/comm/tcp/crypto.h"
#include "engine/comm/tcp/secret.h"

namespace ringfill {

enum class PeerRole : uint8_t { kLeader = 1, kWorker = 2, kRank = 3 };

// What a peer says of itself, proven together with its secret.
struct PeerClaims {
  PeerRole role = PeerRole::kRank;
  uint64_t cluster = 0;  // the deployment, so that two with one secret do not mix
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t ranks = 0;
};

struct Credentials {
  const Secret* secret = nullptr;  // outlives it
  PeerClaims own;
  PeerRole peer_role = PeerRole::kRank;  // others are refused, and other clusters
};

struct SessionKeys {
  FrameKey send, receive;
};

// One side of one handshake, without input or output of its own: send TakeOutput(), read exactly
// wanted() bytes, give them to Receive, until done. Messages have fixed sizes, so nothing is
// allocated for a peer. Not thread-safe.
class Handshake {
 public:
  enum class Side : uint8_t { kInitiator = 1, kAcceptor = 2 };
  static constexpr size_t kHelloBytes = 64;
  static constexpr size_t kProofBytes = 40;
  static constexpr size_t kMaxMessageBytes = kHelloBytes;

  Handshake(Side side, const Credentials& credentials);

  // To be sent now, before anything is read; empty: nothing.
  std::vector<std::byte> TakeOutput();
  // Size of the peer's next message; 0: none.
  size_t wanted() const;
  // UNAUTHENTICATED when the peer has not proven itself: close the connection without an answer.
  // REQUIRES: message.size() == wanted() > 0.
  absl::Status Receive(std::span<const std::byte> message);
  bool done() const { return state_ == State::kDone; }

  // REQUIRES: done().
  const PeerClaims& peer() const { return peer_; }
  const SessionKeys& keys() const { return keys_; }

 private:
  enum class State { kHello, kProof, kDone, kFailed };

  absl::Status ReceiveHello(std::span<const std::byte> message);
  absl::Status ReceiveProof(std::span<const std::byte> message);
  std::vector<std::byte> ProofMessage(const Digest& proof) const;
  Digest InitiatorProof() const;
  Digest AcceptorProof() const;
  void Finish();

  Side side_;
  Credentials credentials_;
  State state_ = State::kHello;
  std::vector<std::byte> own_hello_, peer_hello_, output_;
  PeerClaims peer_;
  SessionKeys keys_;
};

}  // namespace ringfill
