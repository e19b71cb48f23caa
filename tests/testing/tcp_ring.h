// Ranks as threads of a test that talk over tcp on loopback.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tcp/listener.h"
#include "engine/comm/tcp/secret.h"

namespace ringfill {

// Keeps one listener a rank, so that groups of later epochs form at the same addresses.
class TcpRing {
 public:
  TcpRing();
  // The ends of a group, formed by a thread each, with a generous hang limit.
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Form(int ranks, uint64_t epoch);

 private:
  const Secret secret_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // [ranks]
};

}  // namespace ringfill
