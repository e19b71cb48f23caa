#include "engine/request/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace ringfill {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)), nodes_(1) {
  for (int stop = 0; stop < static_cast<int>(stops_.size()); ++stop) Insert(stop);
  LinkSuffixes();
}

void StopMatcher::Insert(int stop) {
  RF_CHECK(!stops_[stop].empty());
  int node = 0;
  for (const char c : stops_[stop]) {
    int child = Child(node, c);
    if (child < 0) {
      child = static_cast<int>(nodes_.size());
      nodes_[node].children.emplace_back(c, child);
      nodes_.emplace_back();
      nodes_.back().depth = nodes_[node].depth + 1;
    }
    node = child;
  }
  nodes_[node].stop = stop;
}

void StopMatcher::LinkSuffixes() {
  std::vector<int> queue = {0};  // breadth first: suffixes are shorter, so they are linked before
  for (size_t head = 0; head < queue.size(); ++head) {
    const int parent = queue[head];
    for (const auto& [c, child] : nodes_[parent].children) {
      int suffix = parent == 0 ? -1 : nodes_[parent].fail;
      while (suffix > 0 && Child(suffix, c) < 0) suffix = nodes_[suffix].fail;
      if (suffix >= 0) nodes_[child].fail = std::max(0, Child(suffix, c));
      if (nodes_[child].stop < 0) nodes_[child].stop = nodes_[nodes_[child].fail].stop;
      queue.push_back(child);
    }
  }
}

int StopMatcher::Child(int node, char c) const {
  for (const auto& [label, child] : nodes_[node].children) {
    if (label == c) return child;
  }
  return -1;
}

void StopMatcher::Advance(char c) {
  for (;;) {
    ++steps_;
    if (const int child = Child(node_, c); child >= 0) {
      node_ = child;
      return;
    }
    if (node_ == 0) return;
    node_ = nodes_[node_].fail;
  }
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  const size_t before = held_.size();
  held_ += text;
  const std::string* best = nullptr;
  size_t best_begin = 0;  // in held_
  for (size_t i = 0; i < text.size(); ++i) {
    Advance(text[i]);
    if (nodes_[node_].stop < 0) continue;
    const std::string& stop = stops_[nodes_[node_].stop];
    const size_t begin = before + i + 1 - stop.size();
    if (best == nullptr || begin < best_begin ||
        (begin == best_begin && stop.size() > best->size())) {
      best = &stop;
      best_begin = begin;
    }
  }
  Result result;
  if (best == nullptr) {
    result.text = TakeHeld(held_.size() - held_begin_ - nodes_[node_].depth);
    return result;
  }
  result.matched = true;
  result.stop = *best;
  result.text = TakeHeld(best_begin - held_begin_);
  Reset();
  return result;
}

std::string StopMatcher::Flush() {
  std::string text = TakeHeld(held_.size() - held_begin_);
  Reset();
  return text;
}

std::string StopMatcher::TakeHeld(size_t bytes) {
  std::string taken = held_.substr(held_begin_, bytes);
  held_begin_ += bytes;
  // Moving the rest only when it is the smaller part keeps the cost linear in the text.
  if (held_begin_ * 2 >= held_.size()) {
    held_.erase(0, held_begin_);
    held_begin_ = 0;
  }
  return taken;
}

void StopMatcher::Reset() {
  held_.clear();
  held_begin_ = 0;
  node_ = 0;
}

}  // namespace ringfill
