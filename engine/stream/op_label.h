// What a queued operation is, for traces, simulated cost and messages.
#pragma once

#include <cstdint>
#include <string_view>

namespace ringfill {

enum class OpKind : uint8_t {
  kEmbed,
  kLayers,   // second half of a layer and first half of the next
  kCopyKv,   // pages into a ring buffer
  kStoreKv,  // received rows into pages
  kHeader,   // written or checked
  kAttend,   // queries against one rank's KV
  kMerge,    // softmax states
  kHidden,   // rows of the final state to the host
  kScore,
  kLogits,
  kTokenQkv,  // replicated tokens, one kind a stage
  kTokenAttend,
  kTokenOutput,
  kTokenFfn,
  kTokenEnd,
  kExchange,   // on the communication lane
  kAllGather,  // likewise
  kAllocate,   // a buffer of the device, on the memory lane
};
inline constexpr int kOpKinds = 18;
std::string_view OpKindName(OpKind kind);  // "attend"

// How the sharded chunks of a step meet each other's KV.
enum class RingStrategy : uint8_t {
  kPassKv,    // KV shards travel round the ring
  kGatherKv,  // every rank gets all shards of a layer at once
  kPassQ,     // queries travel, partial states return to their rank each round
  kOrdered,   // KV arrives in position order, for equal bits on any number of ranks
};
inline constexpr int kRingStrategies = 4;
std::string_view RingStrategyName(RingStrategy strategy);  // "pass-kv"

struct OpLabel {
  OpKind kind = OpKind::kLayers;
  int layer = -1;  // -1: none
  int round = -1;  // -1: none
  RingStrategy strategy = RingStrategy::kPassKv;
  int64_t bytes = 0;  // moved, or allocated
};

}  // namespace ringfill
