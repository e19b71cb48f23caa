// Finds special tokens written out in a text: the leftmost, of several there the longest. A token
// is at most kMaxBytes long, so that the time is linear in the text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ringfill {

// Immutable once filled; thread-safe for reading.
class SpecialTokens {
 public:
  static constexpr size_t kMaxBytes = 256;

  struct Match {
    size_t begin = 0;
    size_t length = 0;  // 0: none
    int32_t id = -1;
  };

  SpecialTokens() : nodes_(1) {}

  // `always`: found whether or not special tokens are asked for. Of equal texts the first counts.
  // REQUIRES: 1 to kMaxBytes bytes.
  void Add(std::string_view text, int32_t id, bool always);

  // The first match at or after `from`. Unless `parse_special`, only of tokens added with `always`.
  Match Find(std::string_view text, size_t from, bool parse_special) const;

 private:
  struct Node {
    int32_t id = -1;
    bool always = false;
  };

  Match MatchAt(std::string_view text, size_t begin, bool parse_special) const;

  std::vector<Node> nodes_;                           // a trie; 0 is its root
  absl::flat_hash_map<uint64_t, uint32_t> edges_;     // node << 8 | byte -> node
  std::array<std::array<bool, 256>, 2> starts_ = {};  // [parse_special][first byte]
};

}  // namespace ringfill
