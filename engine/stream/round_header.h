// The 64 bytes at the start of every ring buffer, on every transport. The receiver checks them
// before it uses what follows, so that a stale or foreign buffer is refused.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace ringfill {

struct RoundHeader {
  uint32_t magic = kMagic;
  uint32_t version = 1;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t round = 0;      // how many hops the buffer has made, 0 at its source
  uint32_t source = 0;     // the rank whose data this is
  uint32_t kind = 0;       // a RoundKind
  uint64_t bytes = 0;      // payload after the header
  uint64_t stop_mask = 0;  // bit e: the source asks to stop working on the step's chunk e
  uint64_t checksum = 0;   // 0: not enabled

  static constexpr uint32_t kMagic = 0x47524652;  // "RFRG"
};
static_assert(sizeof(RoundHeader) == 64);

// What the payload is.
enum class RoundKind : uint32_t {
  kKvShard = 0,
  kKvRows = 1,
  kQueries = 2,
  kStates = 3,
  kTokens = 4,
};

// DATA_LOSS naming the field when `got` is not the buffer that was expected here (checksum and
// stop_mask are not compared).
absl::Status CheckRoundHeader(const RoundHeader& expected, const RoundHeader& got);

}  // namespace ringfill
