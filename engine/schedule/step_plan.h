// What one step does: plain values, decided by the scheduler, executed by every rank. A plan says
// all that ranks need to know, so a recorded plan replays.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/tokenizer.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

// A step's chunks are the bits of RoundHeader::stop_mask.
inline constexpr int kMaxChunksPerStep = 64;

using SequenceId = uint64_t;
// [ranks] the sequence's pages on each rank, in local order.
using BlockTable = std::vector<std::vector<PageId>>;

// Prompt tokens [begin, end) of one sequence, in sharded-token mode.
struct PrefillChunk {
  SequenceId sequence = 0;
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<TokenId> tokens;  // [end - begin]
  BlockTable pages;             // covers positions below end
  bool wants_logits = false;    // of the last position
  // Score every position: log p of the token after it. targets[i] follows position begin + i; one
  // fewer than tokens when the chunk ends the prompt.
  bool score = false;
  std::vector<TokenId> targets;
};

// One token of one sequence, in replicated-token mode.
struct DecodeToken {
  SequenceId sequence = 0;
  int64_t position = 0;
  TokenId token = 0;
  BlockTable pages;  // covers position
};

struct StepPlan {
  uint64_t epoch = 1;
  uint64_t step = 0;
  std::vector<PrefillChunk> chunks;  // at most kMaxChunksPerStep
  std::vector<DecodeToken> decodes;

  bool empty() const { return chunks.empty() && decodes.empty(); }
};

}  // namespace ringfill
