// Ranks as threads for tests: one function runs once per rank of a `local` group.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"

namespace ringfill {

// Makes the ends of a group of that many ranks.
using CommunicatorFactory = std::function<std::vector<std::unique_ptr<Communicator>>(int ranks)>;

class LocalRing {
 public:
  using RankFunction = std::function<absl::Status(Communicator& comm)>;

  // Runs `fn` on one thread per rank and joins them all; returns the ranks' statuses in rank
  // order. The process is ended with a message when that takes longer than `limit`, so that a
  // deadlock fails a test rather than hanging the run.
  static std::vector<absl::Status> Spawn(int ranks, const RankFunction& fn,
                                         Duration limit = std::chrono::minutes(2));
  // The same over another transport.
  static std::vector<absl::Status> SpawnOver(const CommunicatorFactory& factory, int ranks,
                                             const RankFunction& fn,
                                             Duration limit = std::chrono::minutes(2));
};

}  // namespace ringfill
