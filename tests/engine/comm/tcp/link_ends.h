// Both ends of one connection between ranks.
#pragma once

#include <memory>
#include <utility>

#include "engine/comm/tcp/link.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/tcp/sessions.h"

namespace ringfill {

struct LinkEnds {
  LinkEnds() {
    const Fd listener = ListenTcp({"127.0.0.1", 0}).value();
    const Instant soon = Clock::Real().Now() + std::chrono::seconds(60);
    ProvenSocket called, caller;
    caller.socket = ConnectTcp(LocalAddress(listener).value(), soon).value();
    EXPECT_TRUE(AwaitSocket(listener, POLLIN, soon, "a caller").ok());
    called.socket = std::move(AcceptTcp(listener).value()->socket);
    FillRandom(caller.keys.send);
    FillRandom(caller.keys.receive);
    called.keys.send = caller.keys.receive;
    called.keys.receive = caller.keys.send;
    a = std::make_unique<Link>(std::move(caller));
    b = std::make_unique<Link>(std::move(called));
  }
  // Moves bytes from `a` to `b` until b's peer has ended or `frames` have come.
  absl::Status Pump(CollectingSink& sink, size_t frames) {
    while (sink.got.size() < frames) {
      RF_RETURN_IF_ERROR(a->Write());
      const Link::ReadResult result = b->Read(sink);
      RF_RETURN_IF_ERROR(result.socket);
      RF_RETURN_IF_ERROR(result.frames);
      if (result.end) break;
    }
    return absl::OkStatus();
  }
  std::unique_ptr<Link> a, b;
};

}  // namespace ringfill
