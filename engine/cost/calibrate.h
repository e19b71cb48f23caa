// Measures a rank's figures at start, on its own device and communicator: what the cost model is
// fed with until the epoch ends.
//
// Collective: every rank of a new group calls MeasureRank, from threads and from worker processes
// alike, before the first step. Each figure is measured on all ranks at once (a barrier comes
// first), so that what ranks share, such as the cores and the memory of one machine, is in the
// figures as it will be in a step. figures.h says how each is measured. Repetitions are few and
// bounded, medians are taken, and sizes adapt to how fast the device is: about half a second for
// small models, at most about two for a model of which one layer takes long.
//
// What it cannot see: that a transfer of the local transport is a copy by the receiving rank's
// cores, which slows the attention that should hide it when ranks have no core to spare.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/compute/device.h"
#include "engine/cost/figures.h"

namespace ringfill {

struct CalibrateOptions {
  ModelShape shape;
  int64_t product_tile_rows = 64;
  int64_t query_tile_rows = 192;
  // Tells how long things take. Simulated ranks bring their own.
  const Clock* clock = &Clock::Real();
  // Of all waits for peers, by the real clock; must be set.
  Instant deadline{};
};

// The same figures on every rank. Uses the first pages of the device, whose contents are lost.
// REQUIRES: the device has pages, no sequence has any yet; nothing is queued or under way. After an
// error the epoch is aborted.
absl::StatusOr<Figures> MeasureRank(Device& device, Communicator& comm,
                                    const CalibrateOptions& options);

}  // namespace ringfill
