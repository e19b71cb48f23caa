#include "engine/comm/tcp/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

constexpr int kBacklog = 128;
// Far beyond what a slow network delays; silence is noticed earlier, by beats (mesh.h).
constexpr int kUnacknowledgedMs = 30000;

absl::Status SystemError(std::string_view what) {
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", std::strerror(errno)));
}

HostPort FromSockaddr(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return {text, ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
  inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  return {text, ntohs(v4.sin_port)};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostPort& at, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(HostPortText(at), ": ", gai_strerror(error)));
  }
  return AddressList(found, freeaddrinfo);
}

void SetOption(const Fd& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

void Tune(const Fd& socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
}

Fd MakeSocket(int family) {
  return Fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

absl::StatusOr<Fd> ConnectTo(const addrinfo& address, const std::string& name, Instant deadline,
                             const Waker* stop) {
  Fd socket = MakeSocket(address.ai_family);
  if (!socket.valid()) return SystemError("socket");
  Tune(socket);
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  // An interrupted connect goes on by itself.
  if (errno != EINPROGRESS && errno != EINTR) return SystemError(absl::StrCat("connect to ", name));
  RF_RETURN_IF_ERROR(
      AwaitSocket(socket, POLLOUT, deadline, absl::StrCat("connect to ", name), stop));
  socklen_t size = sizeof(errno);
  int error = 0;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    errno = error;
    return SystemError(absl::StrCat("connect to ", name));
  }
  return socket;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this == &other) return *this;
  Close();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void Fd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is no address; write host:port"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return refuse();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return refuse();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return refuse();
  }
  HostPort parsed = {std::string(host), 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
  if (error != std::errc() || end != port.data() + port.size() || parsed.port < 0 ||
      parsed.port > 65535) {
    return refuse();
  }
  return parsed;
}

std::string HostPortText(const HostPort& at) {
  const bool v6 = at.host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", at.host, "]:", at.port) : absl::StrCat(at.host, ":", at.port);
}

absl::StatusOr<Fd> ListenTcp(const HostPort& at) {
  RF_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(at, AI_PASSIVE));
  Fd socket = MakeSocket(addresses->ai_family);
  if (!socket.valid()) return SystemError("socket");
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return SystemError(absl::StrCat("listen on ", HostPortText(at)));
  }
  return socket;
}

absl::StatusOr<HostPort> LocalAddress(const Fd& socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return SystemError("getsockname");
  }
  return FromSockaddr(storage);
}

absl::StatusOr<Fd> ConnectTcp(const HostPort& to, Instant deadline, const Waker* stop) {
  RF_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(to, 0));
  absl::Status failure;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<Fd> socket = ConnectTo(*address, HostPortText(to), deadline, stop);
    if (socket.ok()) return socket;
    failure.Update(socket.status());
  }
  return failure;
}

absl::StatusOr<std::optional<Accepted>> AcceptTcp(const Fd& listener) {
  for (;;) {
    sockaddr_storage storage = {};
    socklen_t size = sizeof(storage);
    Fd socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size,
                      SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Tune(socket);
      return Accepted{std::move(socket), HostPortText(FromSockaddr(storage))};
    }
    // Whoever gave up while waiting is not our failure.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    return SystemError("accept");
  }
}

absl::StatusOr<Moved> ReadSome(const Fd& socket, std::span<const iovec> into) {
  for (;;) {
    const ssize_t got = readv(socket.get(), into.data(), static_cast<int>(into.size()));
    if (got > 0) return Moved{static_cast<size_t>(got), false};
    if (got == 0) return Moved{0, true};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved{};
    return SystemError("read");
  }
}

absl::StatusOr<size_t> WriteSome(const Fd& socket, std::span<const iovec> from) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  for (;;) {
    const ssize_t put = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (put >= 0) return static_cast<size_t>(put);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    return SystemError("write");
  }
}

void ShutdownWrites(const Fd& socket) { shutdown(socket.get(), SHUT_WR); }
void ShutdownBoth(const Fd& socket) { shutdown(socket.get(), SHUT_RDWR); }

bool PollUntil(std::span<pollfd> polled, Instant deadline) {
  for (;;) {
    const Duration left = std::max(deadline - Clock::Real().Now(), Duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    timespec limit = {};
    limit.tv_sec = static_cast<time_t>(std::min<int64_t>(seconds.count(), 1 << 30));
    limit.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
    const int ready = ppoll(polled.data(), polled.size(), &limit, nullptr);
    if (ready > 0) return true;
    RF_CHECK(ready == 0 || errno == EINTR);
    if (Clock::Real().Now() >= deadline) return false;
  }
}

absl::Status AwaitSocket(const Fd& socket, short events, Instant deadline, std::string_view what,
                         const Waker* stop) {
  pollfd polled[] = {{socket.get(), events, 0}, PolledStop(stop)};
  if (!PollUntil(polled, deadline)) {
    return absl::DeadlineExceededError(absl::StrCat(std::string(what), " took too long"));
  }
  if (polled[1].revents == 0) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(std::string(what), " was given up"));
}

pollfd PolledStop(const Waker* stop) {
  return {stop != nullptr ? stop->fd() : -1, POLLIN, 0};  // poll passes over -1
}

absl::Status PauseUntil(Instant end, const Waker* stop) {
  pollfd polled = PolledStop(stop);
  return PollUntil(std::span(&polled, 1), end) ? absl::CancelledError("given up")
                                               : absl::OkStatus();
}

Waker::Waker() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { RF_CHECK(event_.valid()); }

void Waker::Wake() {
  const uint64_t one = 1;
  // Only a full counter is refused, and that wakes too.
  [[maybe_unused]] const ssize_t put = write(event_.get(), &one, sizeof(one));
}

void Waker::Clear() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
}

}  // namespace ringfill
