// What every RPC works with. Owned by the daemon; outlives the gRPC server.
#pragma once

#include "base/clock.h"
#include "engine/engine.h"
#include "server/metrics/server_metrics.h"
#include "server/rpc/convert.h"
#include "server/rpc/open_calls.h"
#include "server/rpc/work_queue.h"
#include "server/trace/tracer.h"

namespace ringfill {

// Messages up to this size are converted on gRPC's own thread (under about 10 ms of tokenizing).
// Larger ones go to `conversions`: gRPC has only a few threads, and they carry every other call and
// the health checks too.
inline constexpr size_t kInlineMessageBytes = size_t{64} << 10;
inline constexpr int kConversionThreads = 2;
inline constexpr size_t kMaxWaitingConversions = 64;

struct RpcServices {
  Engine& engine;
  const PromptReader& prompts;
  ServerMetrics& metrics;
  OpenCalls& calls;
  WorkQueue& conversions;
  // Where the engine's notices are handled, so that its threads never run gRPC code. Capacity
  // kMaxOpenCalls: each call waits in it at most once.
  WorkQueue& events;
  Tracer& tracer;
  const Clock& clock;
  Instant started;
  Duration write_stall_limit;  // a write that takes longer: the client does not read
};

}  // namespace ringfill
