#include "engine/model/special_tokens.h"

#include "base/check.h"

namespace ringfill {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

void SpecialTokens::Add(std::string_view text, int32_t id, bool always) {
  RF_CHECK(!text.empty() && text.size() <= kMaxBytes);
  uint32_t node = 0;
  for (char byte : text) {
    const auto [edge, added] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = edge->second;
  }
  if (nodes_[node].id >= 0) return;
  nodes_[node] = {id, always};
  const auto first = static_cast<unsigned char>(text[0]);
  starts_[1][first] = true;
  if (always) starts_[0][first] = true;
}

SpecialTokens::Match SpecialTokens::MatchAt(std::string_view text, size_t begin,
                                            bool parse_special) const {
  Match match;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto edge = edges_.find(EdgeKey(node, text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    const Node& reached = nodes_[node];
    if (reached.id >= 0 && (parse_special || reached.always)) {
      match = {begin, at + 1 - begin, reached.id};
    }
  }
  return match;
}

SpecialTokens::Match SpecialTokens::Find(std::string_view text, size_t from,
                                         bool parse_special) const {
  const std::array<bool, 256>& starts = starts_[parse_special ? 1 : 0];
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts[static_cast<unsigned char>(text[at])]) continue;
    const Match match = MatchAt(text, at, parse_special);
    if (match.length > 0) return match;
  }
  return {};
}

}  // namespace ringfill
