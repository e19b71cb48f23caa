// Layers expanded from their stored weight type into packed matrices for products over many rows. A
// few slots are shared by every thread of every rank of the process, so memory stays at the model
// file plus a bound, and each layer is expanded once a pass, not once a rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/compute/products/matrix_product.h"
#include "engine/model/model.h"

namespace ringfill {

// The matrices of a layer, in the order they are used.
enum class LayerMatrix { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kLayerMatrices = 7;

const WeightMatrix& GetMatrix(const LayerWeights& layer, LayerMatrix m);

// Thread-safe. A pass over the layers is made by all `users` together: each thread of each user
// calls Acquire(layer) (sharing the work of expanding), and each user calls Release(layer) once
// when none of its threads reads the layer any more. Layers are acquired in ascending order; user A
// may be ahead of user B by less than the number of slots.
class ExpandedWeights {
 public:
  // `budget_bytes`: slots fill it, at least two and at most one a layer. The first layers stay
  // expanded in all slots but two, which the other layers share in turn. `users`: ranks.
  ExpandedWeights(const Model& model, DType dtype, int64_t budget_bytes, int users);

  const PackedFormat& format(LayerMatrix m) const { return formats_[static_cast<size_t>(m)]; }
  int slots() const { return static_cast<int>(slots_.size()); }
  size_t bytes() const { return layer_bytes_ * slots_.size(); }

  // Helps to expand `layer` with the calling thread's `products`, waits until it is complete.
  // DEADLINE_EXCEEDED when a slot does not come free or other helpers do not finish in time.
  absl::Status Acquire(int layer, MatrixProducts& products, Instant deadline);
  void Release(int layer);
  // Valid between Acquire and Release.
  const std::byte* packed(int layer, LayerMatrix m) const;

  // Makes every waiting and later Acquire fail with `status` until Reset. REQUIRES: !status.ok().
  void Abort(const absl::Status& status);
  // A new epoch of `users`: forgets all state, also that of a failed pass. REQUIRES: nobody is
  // inside.
  void Reset(int users);

 private:
  struct Slot {
    AlignedBuffer storage;
    int layer = -1;      // what it holds or is being filled with
    int next_piece = 0;  // pieces handed out
    int done_pieces = 0;
    int readers = 0;  // users that have not released it yet
  };

  size_t SlotIndex(int layer) const;
  Slot& SlotOf(int layer) { return slots_[SlotIndex(layer)]; }
  const Slot& SlotOf(int layer) const { return slots_[SlotIndex(layer)]; }

  const Model& model_;
  std::vector<PackedFormat> formats_;  // [kLayerMatrices]
  std::vector<size_t> offsets_;        // [kLayerMatrices] in a slot
  size_t layer_bytes_ = 0;
  int pinned_ = 0;  // the first layers, which have a slot each
  Mutex mutex_;
  int users_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  CondVar changed_;
  std::vector<Slot> slots_;  // the fields other than storage are guarded by mutex_
};

}  // namespace ringfill
