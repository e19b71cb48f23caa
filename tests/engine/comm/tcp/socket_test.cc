#include "engine/comm/tcp/socket.h"

#include <gtest/gtest.h>

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant In(Duration from_now) { return Clock::Real().Now() + from_now; }

TEST(HostPortTest, Forms) {
  EXPECT_EQ(ParseHostPort("10.0.0.1:70")->host, "10.0.0.1");
  EXPECT_EQ(ParseHostPort("node-3.ring:65535")->port, 65535);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  for (const char* wrong : {"", ":", "host", "host:", ":70", "host:x", "host:-1", "host:65536",
                            "host:70 ", "::1:70", "[::1]", "[]:70", "[::1:70", "host:0x10"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHostPort(wrong).status())) << wrong;
  }
}

TEST(SocketTest, RefusedAndLateConnectionsFailInTime) {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  const HostPort at = LocalAddress(listener).value();
  EXPECT_GT(at.port, 0);
  EXPECT_TRUE(ConnectTcp(at, In(seconds(10))).ok());
  listener.Close();
  EXPECT_TRUE(absl::IsUnavailable(ConnectTcp(at, In(seconds(10))).status()));
  EXPECT_TRUE(
      absl::IsUnavailable(ConnectTcp({"no such host.invalid", 1}, In(seconds(10))).status()));
}

TEST(SocketTest, WritesToAClosedPeerAreErrorsNotSignals) {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  Fd caller = ConnectTcp(LocalAddress(listener).value(), In(seconds(10))).value();
  ASSERT_TRUE(AwaitSocket(listener, POLLIN, In(seconds(10)), "a caller").ok());
  std::optional<Accepted> accepted = AcceptTcp(listener).value();
  ASSERT_TRUE(accepted.has_value());
  EXPECT_FALSE(AcceptTcp(listener).value().has_value());
  accepted.reset();
  char byte = 1;
  const iovec part = {&byte, 1};
  ASSERT_TRUE(AwaitSocket(caller, POLLIN, In(seconds(10)), "the end").ok());
  EXPECT_TRUE(ReadSome(caller, std::span(&part, 1))->end);
  absl::Status status;
  for (int i = 0; status.ok() && i < 100; ++i) {
    status = WriteSome(caller, std::span(&part, 1)).status();
    if (status.ok()) {
      pollfd polled = {caller.get(), POLLERR, 0};
      PollUntil(std::span(&polled, 1), In(milliseconds(50)));
    }
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(SocketTest, WaitsEndAtTheirDeadline) {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  const Instant deadline = In(milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitSocket(listener, POLLIN, deadline, "nobody")));
  EXPECT_GE(Clock::Real().Now(), deadline);
}

TEST(WakerTest, WakesUntilCleared) {
  Waker waker;
  pollfd polled = {waker.fd(), POLLIN, 0};
  EXPECT_FALSE(PollUntil(std::span(&polled, 1), Clock::Real().Now()));
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(PollUntil(std::span(&polled, 1), Clock::Real().Now()));
  waker.Clear();
  EXPECT_FALSE(PollUntil(std::span(&polled, 1), Clock::Real().Now()));
}

}  // namespace
}  // namespace ringfill
