// Documents inside one prompt: a token sees those before it in its own document only, [the
// document's first position, itself]. Where documents begin is a list of positions, ascending;
// positions before the first of the list, all of them when it is empty, are one more document. The
// last one is open: what is generated continues it.
//
// The mask is block-diagonal; see GenerateRequest.document_starts in proto/ for what that means to
// a client. On one rank, a query at p sees of another rank's tokens
// [TokensBefore(start(p)), TokensBefore(p + 1)): still one range, with no mask in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

// The document that holds `position`; its end is the largest number for the last one.
Span DocumentAt(std::span<const int64_t> starts, int64_t position);
inline int64_t DocumentStart(std::span<const int64_t> starts, int64_t position) {
  return starts.empty() ? 0 : DocumentAt(starts, position).begin;
}

// Those of `starts` that say for every position of `spans` where its document begins; empty where
// all see from 0. At most one for each position.
std::vector<int64_t> StartsOf(std::span<const int64_t> starts, std::span<const Span> spans);

// Pages of a sequence on one rank, counted in local order.
struct PageRange {
  int64_t first = 0;
  int64_t count = 0;
};
// From the first one that a token of the chunk sees to the one of its last token.
PageRange PagesSeen(const PrefillChunk& chunk, const Placement& placement, int rank,
                    int64_t page_tokens);

}  // namespace ringfill
