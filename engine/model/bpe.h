// The merging of byte-pair encoding: of all neighbouring pairs with a merge the one of lowest rank
// merges first, the leftmost among equals, until none is left. O(n log n) for a word of n symbols.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ringfill {

// Merges by rank. Immutable once filled; thread-safe for reading.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };

  void Reserve(size_t merges) { merges_.reserve(merges); }
  // Ranks rise from 0 in the order of the calls; of equal pairs the first counts. REQUIRES: ids of
  // 0 and up.
  void Add(int32_t left, int32_t right, int32_t merged);
  // Null when the pair does not merge.
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }
  size_t size() const { return merges_.size(); }
  // True when a merge's result takes part only in merges of higher rank, as in every vocabulary
  // that was made by training: then all pairs of a rank are known when its turn comes.
  bool in_training_order() const { return in_training_order_; }

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::vector<bool> is_part_;  // [id] of a merge so far
  bool in_training_order_ = true;
};

// Scratch for merging word after word. Owned by one call; not thread-safe.
class BpeMerger {
 public:
  // Words of at least this many symbols go rank by rank where the table allows it, which touches
  // memory in order; shorter ones, and all others, go through a priority queue.
  static constexpr size_t kLongWord = 256;

  explicit BpeMerger(const MergeTable& table) : table_(table) {}

  // Appends the merged form of `symbols` to `out`. Negative symbols never merge and are left out.
  // REQUIRES: fewer than 2^31 symbols.
  void Append(std::span<const int32_t> symbols, std::vector<int32_t>& out);

  // Candidates looked at so far, at most three for each symbol: the measure of work.
  uint64_t steps() const { return steps_; }

 private:
  static constexpr int32_t kGone = -2;  // a node that was merged into its left neighbour

  struct Node {
    int32_t symbol;
    int32_t previous, next;  // -1: none
  };
  // A pair that may merge; stale when its symbols have changed since.
  struct Candidate {
    uint32_t rank;
    int32_t position;  // of the left node
    int32_t left, right, merged;
  };
  // All candidates of one rank, that is of one pair of symbols.
  struct RankGroup {
    int32_t left, right, merged;
    std::vector<int32_t> positions;
  };
  static bool Later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }

  bool MakeCandidate(int32_t position, Candidate& out) const;
  // Merges a pair unless it is stale, and calls push(position) for each pair that this makes.
  template <typename Push>
  void Merge(int32_t position, int32_t left, int32_t right, int32_t merged, const Push& push);
  void MergeByQueue();
  void MergeRankByRank();

  const MergeTable& table_;
  std::vector<Node> nodes_;
  std::vector<Candidate> queue_;  // a heap
  uint64_t steps_ = 0;
};

}  // namespace ringfill
