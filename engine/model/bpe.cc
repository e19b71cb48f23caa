#include "engine/model/bpe.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace ringfill {

void MergeTable::Add(int32_t left, int32_t right, int32_t merged) {
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

void BpeMerger::PushCandidate(int32_t position) {
  Candidate candidate;
  if (!MakeCandidate(position, candidate)) return;
  queue_.push_back(candidate);
  std::push_heap(queue_.begin(), queue_.end(), Later);
}

void BpeMerger::Append(std::span<const int32_t> symbols, std::vector<int32_t>& out) {
  RF_CHECK(symbols.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  const auto n = static_cast<int32_t>(symbols.size());
  if (n == 0) return;
  nodes_.resize(symbols.size());
  for (int32_t i = 0; i < n; ++i) nodes_[i] = {symbols[i], i - 1, i + 1 < n ? i + 1 : -1};
  queue_.clear();
  for (int32_t i = 0; i + 1 < n; ++i) {
    Candidate candidate;
    if (MakeCandidate(i, candidate)) queue_.push_back(candidate);
  }
  std::make_heap(queue_.begin(), queue_.end(), Later);
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    ++steps_;
    Node& left = nodes_[top.position];
    if (left.symbol != top.left || left.next < 0 || nodes_[left.next].symbol != top.right) continue;
    Node& right = nodes_[left.next];
    left.symbol = top.merged;
    right.symbol = kGone;
    left.next = right.next;
    if (left.next >= 0) nodes_[left.next].previous = top.position;
    PushCandidate(top.position);
    if (left.previous >= 0) PushCandidate(left.previous);
  }
  for (int32_t i = 0; i >= 0; i = nodes_[i].next) {
    if (nodes_[i].symbol >= 0) out.push_back(nodes_[i].symbol);
  }
}

}  // namespace ringfill
