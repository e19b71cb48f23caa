// What one step does: plain values, decided by the scheduler, executed by every rank. A plan says
// all that ranks need to know, so a recorded plan replays (plan_codec.h has its binary form).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/layout/placement_spec.h"
#include "engine/model/token_id.h"
#include "engine/stream/op_label.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

// A step's chunks are the bits of RoundHeader::stop_mask.
inline constexpr int kMaxChunksPerStep = 64;
inline constexpr int kMaxDecodesPerStep = 256;
// Tokens of a chunk in replicated-token mode; such a chunk is never scored.
inline constexpr int64_t kMaxReplicatedTokens = 256;

using SequenceId = uint64_t;
// [ranks] the sequence's pages on each rank, in local order.
using BlockTable = std::vector<std::vector<PageId>>;

// Who computes a chunk's tokens.
enum class TokenMode : uint8_t {
  kHome,        // each token on the rank that keeps its KV
  kDealt,       // dealt evenly; K/V rows are sent home
  kReplicated,  // every rank has all tokens and a slice of each matrix
};
inline constexpr int kTokenModes = 3;
inline std::string_view TokenModeName(TokenMode mode) {
  constexpr std::string_view kNames[kTokenModes] = {"home", "dealt", "replicated"};
  return kNames[static_cast<int>(mode)];
}

// Positions [begin, end).
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Span&, const Span&) = default;
};

// Tokens of one sequence to compute. KV of every position below spans.back().end that is not in
// `spans` is in the pages already.
struct PrefillChunk {
  SequenceId sequence = 0;
  std::vector<Span> spans;  // ascending, disjoint, none empty; more than one when holes are filled
  std::vector<TokenId> tokens;  // of the spans, in order
  int placement = 0;            // index in StepPlan::placements
  BlockTable pages;             // [ranks] covers positions below end()
  TokenMode mode = TokenMode::kHome;
  RingStrategy strategy = RingStrategy::kPassKv;
  bool wants_logits = false;  // of the last position
  // Score every position: log p of the token after it. targets[i] follows the position of
  // tokens[i]; one fewer than tokens when the chunk ends the prompt.
  bool score = false;
  std::vector<TokenId> targets;
  // Where documents begin (documents.h), as far as the chunk's tokens need to know: ascending,
  // below end(), at most one a token. A token sees KV from the last one at or before it; from 0
  // where there is none.
  std::vector<int64_t> document_starts;

  int64_t begin() const { return spans.front().begin; }
  int64_t end() const { return spans.back().end; }
};

// One token of one sequence, in replicated-token mode.
struct DecodeToken {
  SequenceId sequence = 0;
  int64_t position = 0;
  TokenId token = 0;
  int placement = 0;
  BlockTable pages;            // [ranks] covers position
  int64_t document_start = 0;  // sees KV from this position on
};

struct StepPlan {
  uint64_t epoch = 1;
  uint64_t step = 0;
  int ranks = 1;
  std::vector<PlacementSpec> placements;
  std::vector<PrefillChunk> chunks;  // at most kMaxChunksPerStep
  std::vector<DecodeToken> decodes;
  BlockTable
      freed;  // [ranks] or empty: pages to overwrite before the step, where that is asked for

  bool empty() const { return chunks.empty() && decodes.empty(); }
};

}  // namespace ringfill
