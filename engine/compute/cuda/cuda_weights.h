// A model's weights on one GPU: every device has its own copy. Matrices are computed with in bf16.
// Where memory allows, all layers are expanded to it at load; otherwise the first layers are, the
// others stay as stored and are expanded on the device each time their turn comes, into two places
// that they share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/float_types.h"
#include "base/status.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/memory_plan.h"
#include "engine/model/model.h"

namespace ringfill {

// Used by work that is queued on the memory's stream.
class CudaWeights {
 public:
  // Uploads everything; the host waits. `model` outlives the result. `stopped`, asked between
  // copies, may be empty; CANCELLED when it says true. DEADLINE_EXCEEDED when the GPU hangs.
  static absl::StatusOr<std::unique_ptr<CudaWeights>> Load(const Model& model,
                                                           const CudaWeightsPlan& plan,
                                                           CudaMemory& memory,
                                                           std::function<bool()> stopped = {});

  struct Layer {
    const float* attention_norm;  // [width]
    const float* ffn_norm;        // [width]
    const Bf16* qkv;              // [q_width + 2 * kv_width][width]
    const Bf16* o;                // [width][q_width]
    const Bf16* gate_up;          // gate, then up; each [ffn_width][width]
    const Bf16* down;             // [width][ffn_width]
  };
  // For work that is queued before the next call for another layer. Queues the expansion if need
  // be.
  absl::StatusOr<Layer> ForLayer(int layer);
  // Does the layer keep its place, so that ForLayer queues nothing and says the same every time?
  bool Resident(int layer) const { return layer < resident_; }
  // x row r = embedding row of token[r] (device memory). x: [rows][width] floats
  absl::Status Embed(const int32_t* token, int64_t rows, float* x);
  const float* output_norm() const;  // [width]
  // Rows [begin, end) of the output head, [end - begin][width], until the next call.
  absl::StatusOr<const Bf16*> OutputRows(int64_t begin, int64_t end);

 private:
  // Matrices as stored, one behind another.
  struct StoredLayer {
    DeviceBuffer buffer;
    std::vector<size_t> offsets;
  };

  CudaWeights(const Model& model, const CudaWeightsPlan& plan, CudaMemory& memory,
              std::function<bool()> stopped);
  absl::Status UploadAll();
  absl::Status UploadNorms();
  // Bytes to the device, through pinned memory.
  absl::Status CopyIn(const std::byte* from, size_t bytes, std::byte* to);
  absl::Status ExpandFromFile(const WeightMatrix& w, Bf16* to);
  absl::Status Expand(const WeightMatrix& w, const std::byte* stored, int64_t rows, Bf16* to);
  absl::StatusOr<StoredLayer> Store(const std::vector<const WeightMatrix*>& matrices,
                                    std::string_view what);
  Bf16* PlaceOf(int layer) const;
  // The host does not run ahead of the copies by more than two, and gives up when told to.
  absl::Status Pace();

  const Model& model_;
  const ModelConfig& config_;
  const CudaWeightsPlan plan_;
  CudaMemory& memory_;
  std::function<bool()> stopped_;  // while loading
  int resident_ = 0;               // layers that keep their place
  size_t layer_bytes_ = 0;
  DeviceBuffer expanded_;
  DeviceBuffer norms_;
  std::vector<StoredLayer> stored_;  // of layers from resident_ on
  StoredLayer embedding_, output_;
  DeviceBuffer expanded_output_;
  CudaScratch bounce_, output_block_;
  int place_holds_[2] = {-1, -1};
  std::vector<EventPtr> copies_;  // under way while loading
};

}  // namespace ringfill
