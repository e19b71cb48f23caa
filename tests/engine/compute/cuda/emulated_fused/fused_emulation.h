// What tests say to the attention that stands in for cuDNN's. One to a process, as there is one
// emulation. Set while no rank is there.
#pragma once

#include <cstdint>

namespace ringfill::cuda_emulation {

struct FusedOptions {
  bool there = false;  // else ranks are told that there is no such library
  int64_t least_keys = 16;
  bool wrong = false;  // its statistics are in base-2 units
};
// What ranks find that are made from now on; counters start anew.
void SetFused(const FusedOptions& options);

struct FusedCounters {
  int64_t calls = 0;
  int64_t rows = 0;   // query rows of one KV head, over all entries
  int64_t pairs = 0;  // of such a row and a key
};
FusedCounters GetFusedCounters();

}  // namespace ringfill::cuda_emulation
