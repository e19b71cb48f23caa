#include "engine/comm/tcp/handshake.h"

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/comm/tcp/wire.h"

namespace ringfill {
namespace {

constexpr uint32_t kHelloMagic = 0x48524652;  // "RFRH"
constexpr uint32_t kProofMagic = 0x50524652;  // "RFRP"
constexpr uint16_t kVersion = 1;
constexpr size_t kNonceOffset = 8;
using Nonce = std::array<std::byte, 32>;

std::span<const std::byte> Label(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> MakeHello(Handshake::Side side, const PeerClaims& own) {
  Nonce nonce;
  FillRandom(nonce);
  std::vector<std::byte> hello(Handshake::kHelloBytes);
  WireWriter(hello.data())
      .Put(kHelloMagic)
      .Put(kVersion)
      .Put(side)
      .Put(own.role)
      .Put(nonce)
      .Put(own.cluster)
      .Put(own.epoch)
      .Put(own.rank)
      .Put(own.ranks);
  return hello;
}

absl::Status Refused(std::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("handshake refused: ", std::string(why)));
}

absl::Status CheckPrefix(WireReader& reader, uint32_t magic, Handshake::Side side) {
  if (reader.Get<uint32_t>() != magic) return Refused("the peer speaks another protocol");
  const uint16_t version = reader.Get<uint16_t>();
  if (version != kVersion) {
    return Refused(absl::StrCat("the peer speaks version ", version, ", expected ", kVersion));
  }
  if (reader.Get<uint8_t>() != static_cast<uint8_t>(side)) {
    return Refused("the peer takes the same side");
  }
  return absl::OkStatus();
}

Handshake::Side Other(Handshake::Side side) {
  return side == Handshake::Side::kInitiator ? Handshake::Side::kAcceptor
                                             : Handshake::Side::kInitiator;
}

}  // namespace

Handshake::Handshake(Side side, const Credentials& credentials)
    : side_(side), credentials_(credentials), own_hello_(MakeHello(side, credentials.own)) {
  if (side_ == Side::kInitiator) output_ = own_hello_;
}

std::vector<std::byte> Handshake::TakeOutput() { return std::exchange(output_, {}); }

size_t Handshake::wanted() const {
  if (state_ == State::kHello) return kHelloBytes;
  return state_ == State::kProof ? kProofBytes : 0;
}

absl::Status Handshake::Receive(std::span<const std::byte> message) {
  RF_CHECK(!message.empty() && message.size() == wanted());
  const absl::Status status =
      state_ == State::kHello ? ReceiveHello(message) : ReceiveProof(message);
  if (!status.ok()) {
    state_ = State::kFailed;
    output_.clear();
  }
  return status;
}

absl::Status Handshake::ReceiveHello(std::span<const std::byte> message) {
  WireReader reader(message.data());
  RF_RETURN_IF_ERROR(CheckPrefix(reader, kHelloMagic, Other(side_)));
  peer_.role = static_cast<PeerRole>(reader.Get<uint8_t>());
  const Nonce nonce = reader.Get<Nonce>();
  if (EqualInConstantTime(nonce, std::span(own_hello_).subspan(kNonceOffset, nonce.size()))) {
    return Refused("the peer sent our own nonce");
  }
  peer_.cluster = reader.Get<uint64_t>();
  peer_.epoch = reader.Get<uint64_t>();
  peer_.rank = reader.Get<uint32_t>();
  peer_.ranks = reader.Get<uint32_t>();
  peer_hello_.assign(message.begin(), message.end());
  output_ = side_ == Side::kAcceptor ? own_hello_ : ProofMessage(InitiatorProof());
  state_ = State::kProof;
  return absl::OkStatus();
}

absl::Status Handshake::ReceiveProof(std::span<const std::byte> message) {
  WireReader reader(message.data());
  RF_RETURN_IF_ERROR(CheckPrefix(reader, kProofMagic, Other(side_)));
  if (reader.Get<uint8_t>() != 0) return Refused("a reserved field is used");
  const Digest expected = side_ == Side::kAcceptor ? InitiatorProof() : AcceptorProof();
  if (!EqualInConstantTime(reader.Get<Digest>(), expected)) {
    return Refused("the peer does not know the shared secret");
  }
  if (peer_.role != credentials_.peer_role) return Refused("the peer has another role");
  if (peer_.cluster != credentials_.own.cluster) {
    return Refused("the peer belongs to another deployment");
  }
  if (side_ == Side::kAcceptor) output_ = ProofMessage(AcceptorProof());
  Finish();
  return absl::OkStatus();
}

std::vector<std::byte> Handshake::ProofMessage(const Digest& proof) const {
  std::vector<std::byte> message(kProofBytes);
  WireWriter(message.data()).Put(kProofMagic).Put(kVersion).Put(side_).Put(uint8_t{0}).Put(proof);
  return message;
}

Digest Handshake::InitiatorProof() const {
  const bool initiator = side_ == Side::kInitiator;
  return credentials_.secret->Hmac({Label("ringfill initiator proof"),
                                    initiator ? own_hello_ : peer_hello_,
                                    initiator ? peer_hello_ : own_hello_});
}

Digest Handshake::AcceptorProof() const {
  const bool initiator = side_ == Side::kInitiator;
  const Digest before = InitiatorProof();
  return credentials_.secret->Hmac({Label("ringfill acceptor proof"),
                                    initiator ? own_hello_ : peer_hello_,
                                    initiator ? peer_hello_ : own_hello_, before});
}

void Handshake::Finish() {
  const bool initiator = side_ == Side::kInitiator;
  const auto key = [&](std::string_view label) {
    return credentials_.secret->Hmac(
        {Label(label), initiator ? own_hello_ : peer_hello_, initiator ? peer_hello_ : own_hello_});
  };
  const FrameKey from_initiator = key("ringfill frames of the initiator");
  const FrameKey from_acceptor = key("ringfill frames of the acceptor");
  keys_.send = initiator ? from_initiator : from_acceptor;
  keys_.receive = initiator ? from_acceptor : from_initiator;
  state_ = State::kDone;
}

}  // namespace ringfill
