// One phase of a request, for the timeline.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace ringfill {

enum class RequestPhase : uint8_t {
  kQueue,    // arrival to first step
  kPrefill,  // to the end of the prompt
  kDecode,   // first token to last
};

struct RequestSpan {
  std::string request_id;   // any text
  std::string traceparent;  // see Request
  RequestPhase phase = RequestPhase::kQueue;
  int64_t tokens = 0;  // of the prompt; of kDecode generated ones
  Instant begin, end;
  bool open = false;  // the phase goes on; `end` is now
};

}  // namespace ringfill
