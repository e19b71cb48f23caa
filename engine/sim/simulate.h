// A prompt's chunks in simulated time: the passes that serve real requests (worker/run_step.h) on
// virtual devices and the virtual transport, with a thread a rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/compute/batch.h"
#include "engine/cost/figures.h"
#include "engine/layout/placement_spec.h"
#include "engine/schedule/way_chooser.h"
#include "engine/stream/trace.h"

namespace ringfill {

struct SimSpec {
  ModelShape shape;
  Figures figures;  // says how many ranks there are
  PlacementSpec placement;
  int64_t cached_tokens = 0;             // whose KV lies in the pages already
  std::vector<int64_t> chunk_tokens;     // new tokens of each step, one chunk each
  std::vector<int64_t> document_starts;  // of the prompt (schedule/documents.h)
  Way way;                               // of every chunk
  bool wants_logits = true;              // of the last position of the last chunk
  int64_t gather_bytes = int64_t{256} << 20;
  bool trace = false;
};

struct SimRank {
  double busy_s = 0;  // computing
  double wait_s = 0;  // the stream had nothing to run until a transfer came
  double lane_s = 0;  // the communication lane moved bytes
  int64_t sent_bytes = 0;
  WorkCounters work;
  std::vector<TraceSpan> trace;  // where asked for
};

struct SimResult {
  double seconds = 0;  // until the last rank is done
  std::vector<SimRank> ranks;
  // The share of the lanes' time for which the rank did not wait.
  double hidden_share = 1;
};

// Equal specs give equal results to the bit. INVALID_ARGUMENT for what the passes refuse.
absl::StatusOr<SimResult> Simulate(const SimSpec& spec);

// The first chunk of the spec as the scheduler would plan it, `way` set.
PrefillChunk FirstChunk(const SimSpec& spec);

}  // namespace ringfill
