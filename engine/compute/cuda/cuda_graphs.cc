#include "engine/compute/cuda/cuda_graphs.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

// Each has a graph for every stage of every layer.
constexpr size_t kMostShapes = 8;

}  // namespace

void CudaGraphs::Begin(const Shape& shape) {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(),
                                  [&shape](const OfShape& of) { return of.shape == shape; });
  if (found != shapes_.end()) {
    found->seen_before = true;
    shapes_.splice(shapes_.begin(), shapes_, found);
  } else {
    if (shapes_.size() == kMostShapes) shapes_.pop_back();
    shapes_.push_front({.shape = shape, .graphs = {}});
  }
  current_ = &shapes_.front();
}

absl::StatusOr<CudaGraphs::Captured> CudaGraphs::Capture(
    const Key& key, cudaStream_t stream, const std::function<absl::Status()>& launches) {
  RF_RETURN_IF_CUDA_ERROR(device_,
                          cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::Status launched = launches();
  // Also behind a failure: the stream would go on capturing.
  cudaGraph_t graph = nullptr;
  const absl::Status ended =
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture", device_);
  cudaGraphExec_t made = nullptr;
  absl::Status status = launched.ok() ? ended : launched;
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate", device_);
  }
  if (graph != nullptr) IgnoreCuda(cudaGraphDestroy(graph));
  RF_RETURN_IF_ERROR(status);
  Captured captured;
  captured.key = key;
  captured.graph.reset(made);
  return captured;
}

absl::Status CudaGraphs::Run(const Key& key, cudaStream_t stream,
                             const std::function<absl::Status()>& launches) {
  if (given_up_ || current_ == nullptr || !current_->seen_before) return launches();
  auto at = current_->graphs.find(key.place);
  if (at == current_->graphs.end() || at->second.key != key) {
    absl::StatusOr<Captured> captured = Capture(key, stream, launches);
    if (!captured.ok()) {
      RF_RETURN_IF_ERROR(launches());
      Log(LogLevel::kWarning, "decode goes on without CUDA graphs",
          {{"gpu", device_}, {"why", captured.status().ToString()}});
      given_up_ = true;
      return absl::OkStatus();
    }
    at = current_->graphs.insert_or_assign(key.place, *std::move(captured)).first;
  }
  ++replayed_;
  return CudaStatus(cudaGraphLaunch(at->second.graph.get(), stream), "cudaGraphLaunch", device_);
}

void CudaGraphs::Clear() {
  current_ = nullptr;
  shapes_.clear();
  given_up_ = false;
}

}  // namespace ringfill
