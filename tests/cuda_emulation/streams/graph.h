// Graphs: what capturing a stream made, and how it runs. A launched graph is one task of its
// stream, whose nodes run one at a time in a random order that its edges allow.
#pragma once

#include <memory>
#include <vector>

#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/streams/task.h"

namespace ringfill::cuda_emulation {

struct GraphNode {
  TaskFactory make;
  std::vector<size_t> after;  // earlier nodes
};

struct Graph {
  int device = 0;
  std::vector<GraphNode> nodes;
};

// A capture that is under way. Guarded by the runtime's lock.
struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  uint64_t thread = 0;  // that began it
  bool invalid = false;
  std::vector<cudaStream_t> streams;  // that take part
  Graph graph;
};

class GraphTask final : public Task {
 public:
  GraphTask(const Graph& graph, uint64_t seed);
  bool Poll() override;
  Outcome Run() override;
  void Drop() override;
  std::vector<int> devices() const override;
  const char* name() const override { return "a graph"; }

 private:
  struct Node {
    std::unique_ptr<Task> task;
    std::vector<size_t> after;
    bool done = false;
  };
  bool Reachable(const Node& node) const;

  std::vector<Node> nodes_;
  std::vector<size_t> ready_;  // found by Poll
  size_t done_ = 0;
  Random random_;
};

}  // namespace ringfill::cuda_emulation

struct CUgraph_st {
  ringfill::cuda_emulation::Graph graph;
};
struct CUgraphExec_st {
  ringfill::cuda_emulation::Graph graph;
};
