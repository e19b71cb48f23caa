// Sockets: descriptors that close themselves, TCP connections that never block but in one place,
// and the waits with their deadlines. Where a wait takes a `stop`, which may be null, it ends with
// CANCELLED as long as that is awake.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace ringfill {

// Owns a file descriptor; movable.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// Wakes threads that poll its descriptor. Thread-safe.
class Waker {
 public:
  Waker();
  int fd() const { return event_.get(); }
  void Wake();
  // Makes the descriptor unreadable again.
  void Clear();

 private:
  Fd event_;
};

// "host:port" or "[v6 address]:port"; INVALID_ARGUMENT for anything else.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
// The text of it.
std::string HostPortText(const HostPort& at);

// A non-blocking socket that listens; port 0 takes a free one.
absl::StatusOr<Fd> ListenTcp(const HostPort& at);
absl::StatusOr<HostPort> LocalAddress(const Fd& socket);
// A non-blocking connected socket: no delay, keepalive; it ends when what was sent is not
// acknowledged for half a minute. UNAVAILABLE when refused or unreachable,
// DEADLINE_EXCEEDED.
absl::StatusOr<Fd> ConnectTcp(const HostPort& to, Instant deadline, const Waker* stop = nullptr);
// The next connection that waits, or nothing.
struct Accepted {
  Fd socket;
  std::string address;
};
absl::StatusOr<std::optional<Accepted>> AcceptTcp(const Fd& listener);

// What a read or write moved. Errors of the connection are UNAVAILABLE.
struct Moved {
  size_t bytes = 0;
  bool end = false;  // of a read: the peer has closed its side
};
// Read or write what can be without blocking; never raises SIGPIPE. 0 bytes: it would block.
absl::StatusOr<Moved> ReadSome(const Fd& socket, std::span<const iovec> into);
absl::StatusOr<size_t> WriteSome(const Fd& socket, std::span<const iovec> from);
// Nothing more will be written; the peer sees the end after what was.
void ShutdownWrites(const Fd& socket);
// Both ways: a thread that waits on the socket wakes.
void ShutdownBoth(const Fd& socket);

// Waits until one of `polled` has an event or the deadline has passed; true when one has.
bool PollUntil(std::span<pollfd> polled, Instant deadline);
// For one socket. DEADLINE_EXCEEDED or CANCELLED, naming `what`.
absl::Status AwaitSocket(const Fd& socket, short events, Instant deadline, std::string_view what,
                         const Waker* stop = nullptr);
// What to poll for it; it has an event as long as `stop` is awake, none when that is null.
pollfd PolledStop(const Waker* stop);
// Sleeps until `end`.
absl::Status PauseUntil(Instant end, const Waker* stop);

}  // namespace ringfill
