#include "engine/stream/op_label.h"

namespace ringfill {
namespace {

constexpr std::string_view kOpKindNames[kOpKinds] = {
    "embed",        "layers",    "copy kv",   "store kv", "header",     "attend",
    "merge",        "hidden",    "score",     "logits",   "token qkv",  "token attend",
    "token output", "token ffn", "token end", "exchange", "all-gather", "allocate"};
constexpr std::string_view kStrategyNames[kRingStrategies] = {"pass-kv", "gather-kv", "pass-q",
                                                              "ordered"};

}  // namespace

std::string_view OpKindName(OpKind kind) { return kOpKindNames[static_cast<int>(kind)]; }
std::string_view RingStrategyName(RingStrategy strategy) {
  return kStrategyNames[static_cast<int>(strategy)];
}

}  // namespace ringfill
