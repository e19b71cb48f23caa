#include "engine/model/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "base/check.h"

namespace ringfill {

void MergeTable::Add(int32_t left, int32_t right, int32_t merged) {
  const size_t ids = static_cast<size_t>(std::max({left, right, merged})) + 1;
  if (is_part_.size() < ids) is_part_.resize(ids, false);
  is_part_[left] = is_part_[right] = true;
  if (is_part_[merged]) in_training_order_ = false;
  merges_.try_emplace(Key(left, right), Merge{static_cast<uint32_t>(merges_.size()), merged});
}

bool BpeMerger::MakeCandidate(int32_t position, Candidate& out) const {
  const Node& left = nodes_[position];
  if (left.next < 0 || left.symbol < 0) return false;
  const int32_t right = nodes_[left.next].symbol;
  if (right < 0) return false;
  const MergeTable::Merge* merge = table_.Find(left.symbol, right);
  if (merge == nullptr) return false;
  out = {merge->rank, position, left.symbol, right, merge->merged};
  return true;
}

template <typename Push>
void BpeMerger::Merge(int32_t position, int32_t left, int32_t right, int32_t merged,
                      const Push& push) {
  ++steps_;
  Node& node = nodes_[position];
  if (node.symbol != left || node.next < 0 || nodes_[node.next].symbol != right) return;
  Node& absorbed = nodes_[node.next];
  node.symbol = merged;
  absorbed.symbol = kGone;
  node.next = absorbed.next;
  if (node.next >= 0) nodes_[node.next].previous = position;
  if (node.previous >= 0) push(node.previous);
  push(position);
}

void BpeMerger::MergeByQueue() {
  queue_.clear();
  Candidate candidate;
  for (size_t i = 0; i + 1 < nodes_.size(); ++i) {
    if (MakeCandidate(static_cast<int32_t>(i), candidate)) queue_.push_back(candidate);
  }
  std::make_heap(queue_.begin(), queue_.end(), Later);
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    Merge(top.position, top.left, top.right, top.merged, [&](int32_t position) {
      if (!MakeCandidate(position, candidate)) return;
      queue_.push_back(candidate);
      std::push_heap(queue_.begin(), queue_.end(), Later);
    });
  }
}

void BpeMerger::MergeRankByRank() {
  absl::flat_hash_map<uint32_t, RankGroup> groups;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks;
  const auto push = [&](int32_t position) {
    Candidate made;
    if (!MakeCandidate(position, made)) return;
    const auto [group, added] = groups.try_emplace(made.rank);
    if (added) {
      group->second = {made.left, made.right, made.merged, {}};
      ranks.push(made.rank);
    }
    group->second.positions.push_back(position);
  };
  for (size_t i = 0; i + 1 < nodes_.size(); ++i) push(static_cast<int32_t>(i));
  while (!ranks.empty()) {
    const auto found = groups.find(ranks.top());
    RankGroup group = std::move(found->second);
    groups.erase(found);
    ranks.pop();
    if (!std::is_sorted(group.positions.begin(), group.positions.end())) {
      std::sort(group.positions.begin(), group.positions.end());
    }
    for (int32_t position : group.positions) {
      Merge(position, group.left, group.right, group.merged, push);
    }
  }
}

void BpeMerger::Append(std::span<const int32_t> symbols, std::vector<int32_t>& out) {
  RF_CHECK(symbols.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  const auto n = static_cast<int32_t>(symbols.size());
  if (n == 0) return;
  nodes_.resize(symbols.size());
  for (int32_t i = 0; i < n; ++i) nodes_[i] = {symbols[i], i - 1, i + 1 < n ? i + 1 : -1};
  if (symbols.size() >= kLongWord && table_.in_training_order()) {
    MergeRankByRank();
  } else {
    MergeByQueue();
  }
  for (int32_t i = 0; i >= 0; i = nodes_[i].next) {
    if (nodes_[i].symbol >= 0) out.push_back(nodes_[i].symbol);
  }
}

}  // namespace ringfill
