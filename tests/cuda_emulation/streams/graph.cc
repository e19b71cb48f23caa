#include "tests/cuda_emulation/streams/graph.h"

#include <algorithm>

namespace ringfill::cuda_emulation {

GraphTask::GraphTask(const Graph& graph, uint64_t seed) : random_(seed) {
  for (const GraphNode& node : graph.nodes) nodes_.push_back({node.make(), node.after});
}

bool GraphTask::Reachable(const Node& node) const {
  return !node.done && std::all_of(node.after.begin(), node.after.end(),
                                   [this](size_t i) { return nodes_[i].done; });
}

bool GraphTask::Poll() {
  ready_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (Reachable(nodes_[i]) && nodes_[i].task->Poll()) ready_.push_back(i);
  }
  return !ready_.empty() || nodes_.empty();
}

Outcome GraphTask::Run() {
  if (nodes_.empty()) return {};
  Node& node = nodes_[ready_[random_.Below(ready_.size())]];
  Outcome outcome = node.task->Run();
  if (outcome.finished) {
    node.done = true;
    ++done_;
  }
  outcome.finished = done_ == nodes_.size();
  return outcome;
}

void GraphTask::Drop() {
  for (Node& node : nodes_) {
    if (!node.done) node.task->Drop();
  }
}

std::vector<int> GraphTask::devices() const {
  std::vector<int> all;
  for (const Node& node : nodes_) {
    for (int device : node.task->devices()) all.push_back(device);
  }
  return all;
}

}  // namespace ringfill::cuda_emulation
