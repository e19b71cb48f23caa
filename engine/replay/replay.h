// Runs what a plan log recorded again, on the same model with ranks as threads, and says where the
// results differ from those in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model/model.h"
#include "engine/replay/outcome.h"
#include "engine/replay/plan_log.h"

namespace ringfill {

// What results may differ by with fast numerics, in units of CompareOptions::tolerance. Steps that
// run on the machine which recorded them mostly have equal bits.
inline constexpr double kReplayToleranceF32 = 1e-3;
inline constexpr double kReplayToleranceBf16 = 5e-2;

struct ReplayOptions {
  int threads = 0;                  // over all ranks; 0: one a core
  std::optional<double> tolerance;  // unset: that of the log's type
  bool keep_going = false;          // past the first difference
  // How long ranks wait for each other at least: raise it to stand at a breakpoint.
  Duration min_round_timeout = std::chrono::minutes(10);
  // After each step, with how many there were.
  std::function<void(int64_t steps)> on_step;
};

struct ReplayDifference {
  uint64_t epoch = 0, step = 0;
  std::string what;
};

struct ReplayReport {
  int64_t steps = 0;         // run and compared
  int64_t failed_steps = 0;  // failed when they were recorded; not run
  int64_t rings = 1;         // that were formed
  Agreement agreement;
  double tolerance = 0;
  std::optional<ReplayDifference> first;  // difference
  int64_t different_steps = 0;
  // How the log ends: PlanLogEndText, or in words that it was torn off. A step without results at
  // the end ran, and was not compared.
  std::string end;
  // Not OK when the log cannot be followed to its end: it is damaged (DATA_LOSS), or a plan in it
  // is not valid. What stands before that was compared.
  absl::Status broken;

  bool agrees() const { return !first.has_value() && broken.ok(); }
};

// Why a log cannot be replayed on this model and machine, naming what differs and both values; OK
// when it can.
absl::Status CheckReplayable(const PlanLogHeader& header, const Model& model);

// REQUIRES: CheckReplayable. Reads the log from its first record on.
ReplayReport Replay(PlanLogReader& log, std::shared_ptr<const Model> model,
                    const ReplayOptions& options);

}  // namespace ringfill
