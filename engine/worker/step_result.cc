#include "engine/worker/step_result.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

const char* PlaceName(int round) {
  switch (round) {
    case ValueFault::kTokenQkv:
      return "the projection to queries, keys and values";
    case ValueFault::kTokenAttention:
      return "attention";
    case ValueFault::kTokenOutput:
      return "the output projection";
    case ValueFault::kTokenFfn:
      return "the feed-forward part";
    default:
      return "the products";
  }
}

// Within a layer: attention comes before the products that finish it, and stages follow each other.
int Order(const ValueFault& fault) {
  constexpr int kAfterRounds = 1 << 20;
  return fault.round >= 0 ? fault.round : kAfterRounds - fault.round;
}

}  // namespace

std::string_view CommKindName(CommKind kind) {
  static constexpr std::string_view kNames[kCommKinds] = {"ring", "home", "all_gather", "host"};
  return kNames[static_cast<int>(kind)];
}

std::string DescribePlace(const ValueFault& fault) {
  return absl::StrCat(
      "layer ", fault.layer, ", ",
      fault.round >= 0 ? absl::StrCat("ring round ", fault.round) : PlaceName(fault.round));
}

bool IsEarlier(const ValueFault& a, const ValueFault& b) {
  return std::make_tuple(a.layer, Order(a)) < std::make_tuple(b.layer, Order(b));
}

}  // namespace ringfill
