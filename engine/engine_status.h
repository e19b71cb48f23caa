// What a running engine says of itself.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace ringfill {

struct RankStatus {
  int rank = 0;
  int slots = 0;  // of the placement, this epoch
  int64_t pages_total = 0;
  int64_t pages_used = 0;
  double busy_s = 0;  // computing, since start
  double wait_s = 0;  // waiting for peers, since start
  double ring_bytes = 0;
  double transfer_s = 0;  // the communication lane's time for them
  double hidden_s = 0;    // part of it in which the rank computed
};

struct EngineStatus {
  int64_t queued = 0;
  int64_t running = 0;
  int64_t steps = 0;
  int64_t failed_steps = 0;
  int64_t recomputed_tokens = 0;  // because a rank was lost
  uint64_t epoch = 1;
  bool ring_formed = true;  // false while none is, but for the moment that one mostly takes to form
  int slots = 0;
  double imbalance = 1;       // work of the busiest rank over the mean, all steps
  int64_t trace_dropped = 0;  // spans of traces that nobody took in time, since start
  bool draining = false;
  double seconds_since_progress = 0;  // while there is work; else 0
  // The same also without work, when the leader should look about twice a second: a large value
  // always means that it hangs.
  double seconds_since_sign_of_life = 0;
  // Prompt tokens computed each way: [TokenMode], and of the sharded ones [RingStrategy].
  std::array<int64_t, kTokenModes> mode_tokens{};
  std::array<int64_t, kRingStrategies> strategy_tokens{};
  std::vector<RankStatus> ranks;
};

}  // namespace ringfill
