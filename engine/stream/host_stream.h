// Streams whose operations are host functions: what the CPU device queues on. The inline stream
// runs each at once on the calling thread; tests bring one that runs them late.
#pragma once

#include <functional>
#include <memory>

#include "engine/stream/op_label.h"
#include "engine/stream/stream.h"
#include "engine/stream/trace.h"

namespace ringfill {

class HostStream : public Stream {
 public:
  // `fn` owns or shares whatever it reads; buffers it names stay alive until the stream has been
  // synchronised.
  virtual void Enqueue(const OpLabel& label, std::function<absl::Status()> fn) = 0;
};

// `trace` may be null; must outlive the stream.
std::unique_ptr<HostStream> MakeInlineStream(const Clock& clock, TraceBuffer* trace);

using HostStreamFactory =
    std::function<std::unique_ptr<HostStream>(const Clock& clock, TraceBuffer* trace)>;

}  // namespace ringfill
