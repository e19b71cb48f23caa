#include "engine/comm/tcp/listener.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

constexpr Duration kRetryPause = std::chrono::milliseconds(10);
constexpr char kInHandshake[] = "ringfill/in_handshake";

// Handshake messages are far smaller than a new socket's buffer.
absl::Status SendWhole(const Fd& socket, std::vector<std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const iovec part = {bytes.data(), bytes.size()};
  RF_ASSIGN_OR_RETURN(const size_t put, WriteSome(socket, std::span(&part, 1)));
  return put == bytes.size() ? absl::OkStatus()
                             : absl::UnavailableError("the peer does not take its handshake");
}

// Reads towards `wanted` bytes, never more; true when they are there.
absl::StatusOr<bool> ReadTowards(const Fd& socket, size_t wanted, std::vector<std::byte>& message) {
  std::byte buffer[Handshake::kMaxMessageBytes];
  const iovec part = {buffer, wanted - message.size()};
  RF_ASSIGN_OR_RETURN(const Moved moved, ReadSome(socket, std::span(&part, 1)));
  if (moved.end) {
    absl::Status closed = absl::UnavailableError("the peer closed the connection in the handshake");
    closed.SetPayload(kInHandshake, absl::Cord());
    return closed;
  }
  message.insert(message.end(), buffer, buffer + moved.bytes);
  return message.size() == wanted;
}

bool SameClaims(const PeerClaims& a, const PeerClaims& b) {
  return a.role == b.role && a.cluster == b.cluster && a.epoch == b.epoch && a.rank == b.rank &&
         a.ranks == b.ranks;
}

bool SameCredentials(const Credentials& a, const Credentials& b) {
  return a.secret == b.secret && a.peer_role == b.peer_role && SameClaims(a.own, b.own);
}

}  // namespace

bool ClosedInHandshake(const absl::Status& status) {
  return status.GetPayload(kInHandshake).has_value();
}

absl::StatusOr<ProvenSocket> ConnectProven(const std::string& address,
                                           const Credentials& credentials, Instant deadline,
                                           const Waker* stop) {
  RF_ASSIGN_OR_RETURN(const HostPort to, ParseHostPort(address));
  RF_ASSIGN_OR_RETURN(Fd socket, ConnectTcp(to, deadline, stop));
  Handshake handshake(Handshake::Side::kInitiator, credentials);
  while (!handshake.done()) {
    RF_RETURN_IF_ERROR(SendWhole(socket, handshake.TakeOutput()));
    std::vector<std::byte> message;
    bool whole = false;
    while (!whole) {
      RF_RETURN_IF_ERROR(
          AwaitSocket(socket, POLLIN, deadline, absl::StrCat("handshake with ", address), stop));
      RF_ASSIGN_OR_RETURN(whole, ReadTowards(socket, handshake.wanted(), message));
    }
    RF_RETURN_IF_ERROR(handshake.Receive(message));
  }
  return ProvenSocket{std::move(socket), handshake.keys(), handshake.peer(), address};
}

absl::StatusOr<ProvenSocket> ConnectProvenRetrying(const std::string& address,
                                                   const Credentials& credentials, Instant deadline,
                                                   const Waker* stop) {
  for (;;) {
    absl::StatusOr<ProvenSocket> made = ConnectProven(address, credentials, deadline, stop);
    if (made.ok() || !absl::IsUnavailable(made.status())) return made;
    if (Clock::Real().Now() + kRetryPause >= deadline) return made;
    RF_RETURN_IF_ERROR(PauseUntil(Clock::Real().Now() + kRetryPause, stop));
  }
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(std::string_view address) {
  RF_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(address));
  RF_ASSIGN_OR_RETURN(Fd socket, ListenTcp(at));
  RF_ASSIGN_OR_RETURN(const HostPort bound, LocalAddress(socket));
  return std::unique_ptr<Listener>(new Listener(std::move(socket), HostPortText(bound)));
}

Listener::Listener(Fd socket, std::string address)
    : socket_(std::move(socket)), address_(std::move(address)) {}

absl::StatusOr<ProvenSocket> Listener::Accept(const Credentials& credentials, Instant deadline,
                                              const Waker* stop) {
  // Hellos that were sent say what was true then.
  if (!SameCredentials(credentials_, credentials)) pending_.clear();
  credentials_ = credentials;
  for (;;) {
    if (closed_) return absl::CancelledError("the listener was closed");
    std::vector<pollfd> polled = {
        {waker_.fd(), POLLIN, 0}, PolledStop(stop), {socket_.get(), POLLIN, 0}};
    const size_t before_pending = polled.size();
    Instant until = deadline;
    for (const Pending& pending : pending_) {
      polled.push_back({pending.caller.socket.get(), POLLIN, 0});
      until = std::min(until, pending.limit);
    }
    const bool any = PollUntil(polled, until);
    if (closed_) continue;
    if (polled[1].revents != 0) return absl::CancelledError("no peer is awaited any longer");
    for (size_t i = pending_.size(); any && i-- > 0;) {
      if (polled[before_pending + i].revents == 0) continue;
      if (!Progress(pending_[i])) {
        pending_.erase(pending_.begin() + i);
        ++refused_;
      } else if (pending_[i].handshake.done()) {
        Pending proven = std::move(pending_[i]);
        pending_.erase(pending_.begin() + i);
        return ProvenSocket{std::move(proven.caller.socket), proven.handshake.keys(),
                            proven.handshake.peer(), std::move(proven.caller.address)};
      }
    }
    if (polled[2].revents != 0) RF_RETURN_IF_ERROR(AcceptCallers(credentials));
    const Instant now = Clock::Real().Now();
    DropLate(now);
    if (now >= deadline) return absl::DeadlineExceededError("no peer has proven itself in time");
  }
}

void Listener::Close() {
  closed_ = true;
  waker_.Wake();
}

absl::Status Listener::AcceptCallers(const Credentials& credentials) {
  for (size_t i = 0; i < kMaxPending; ++i) {
    RF_ASSIGN_OR_RETURN(std::optional<Accepted> caller, AcceptTcp(socket_));
    if (!caller.has_value()) break;
    if (pending_.size() == kMaxPending) {
      pending_.pop_front();
      ++refused_;
    }
    pending_.push_back({*std::move(caller),
                        Handshake(Handshake::Side::kAcceptor, credentials),
                        Clock::Real().Now() + kHandshakeLimit,
                        {}});
  }
  return absl::OkStatus();
}

bool Listener::Progress(Pending& pending) {
  const Fd& socket = pending.caller.socket;
  for (;;) {
    const absl::StatusOr<bool> whole =
        ReadTowards(socket, pending.handshake.wanted(), pending.message);
    if (!whole.ok()) return false;
    if (!*whole) return true;
    if (!pending.handshake.Receive(std::exchange(pending.message, {})).ok()) return false;
    if (!SendWhole(socket, pending.handshake.TakeOutput()).ok()) return false;
    if (pending.handshake.done()) return true;
  }
}

void Listener::DropLate(Instant now) {
  refused_ += static_cast<int64_t>(
      std::erase_if(pending_, [&](const Pending& pending) { return pending.limit <= now; }));
}

}  // namespace ringfill
