// CUDA graphs of work that comes again step after step: the launches of a stage of the layers cost
// the host more than the GPU when tokens are few, and a graph makes one launch of them. Work of a
// shape (everything that its launches are made of: extents, addresses) runs plainly the first time,
// since graphs of what comes once would never pay; it is captured the second time and replayed
// from then on.
#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"

namespace ringfill {

// Used by the work of one stream.
class CudaGraphs {
 public:
  explicit CudaGraphs(int device) : device_(device) {}

  // What is run from here on has this shape.
  using Shape = std::vector<uint64_t>;
  void Begin(const Shape& shape);
  // What is run from here on has no shape of its own, and runs plainly.
  void BeginPlain() { current_ = nullptr; }

  // Runs `launches`, or a graph of them. Under one shape and key they are the same launches, of
  // kernels, copies and memsets on the device alone. Addresses that the shape leaves open are part
  // of the key; a graph is kept for each `place`. What cannot be captured runs plainly, and so does
  // all that comes after it.
  struct Key {
    int place;
    const void* in;
    const void* out;
    auto operator<=>(const Key&) const = default;
  };
  absl::Status Run(const Key& key, cudaStream_t stream,
                   const std::function<absl::Status()>& launches);

  // Forgets all, also that something could not be captured: memory may have been short.
  // REQUIRES: none of the graphs runs.
  void Clear();

  int64_t replayed() const { return replayed_; }

 private:
  struct DestroyGraph {
    void operator()(CUgraphExec_st* graph) const { (void)cudaGraphExecDestroy(graph); }
  };
  struct Captured {
    Key key;
    std::unique_ptr<CUgraphExec_st, DestroyGraph> graph;
  };
  struct OfShape {
    Shape shape;
    bool seen_before = false;
    std::map<int, Captured> graphs;  // by place
  };

  absl::StatusOr<Captured> Capture(const Key& key, cudaStream_t stream,
                                   const std::function<absl::Status()>& launches);

  const int device_;
  std::list<OfShape> shapes_;  // the one used last comes first; bounded, see kMostShapes
  OfShape* current_ = nullptr;
  int64_t replayed_ = 0;
  bool given_up_ = false;
};

}  // namespace ringfill
