#include "engine/compute/cpu/expanded_weights.h"

#include <algorithm>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr int kMinSlots = 2;
constexpr size_t kAlignment = 64;

}  // namespace

const WeightMatrix& GetMatrix(const LayerWeights& layer, LayerMatrix m) {
  switch (m) {
    case LayerMatrix::kQ:
      return layer.q;
    case LayerMatrix::kK:
      return layer.k;
    case LayerMatrix::kV:
      return layer.v;
    case LayerMatrix::kO:
      return layer.o;
    case LayerMatrix::kGate:
      return layer.gate;
    case LayerMatrix::kUp:
      return layer.up;
    case LayerMatrix::kDown:
      return layer.down;
  }
  RF_CHECK(false);
}

ExpandedWeights::ExpandedWeights(const Model& model, DType dtype, int64_t budget_bytes, int users)
    : model_(model), users_(users) {
  const LayerWeights& layer = model.layers().front();
  for (int m = 0; m < kLayerMatrices; ++m) {
    const WeightMatrix& w = GetMatrix(layer, static_cast<LayerMatrix>(m));
    formats_.emplace_back(dtype, w.rows, w.cols);
    offsets_.push_back(layer_bytes_);
    layer_bytes_ += (formats_.back().bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  const int layers = model.config().layers;
  const int64_t fitting = budget_bytes / static_cast<int64_t>(layer_bytes_);
  const int slots =
      static_cast<int>(std::min<int64_t>(layers, std::max<int64_t>(kMinSlots, fitting)));
  pinned_ = slots == layers ? layers : slots - kMinSlots;
  slots_.resize(static_cast<size_t>(slots));
  for (Slot& slot : slots_) slot.storage = AlignedBuffer(layer_bytes_);
}

size_t ExpandedWeights::SlotIndex(int layer) const {
  if (layer < pinned_) return static_cast<size_t>(layer);
  return static_cast<size_t>(pinned_ + (layer - pinned_) % kMinSlots);
}

absl::Status ExpandedWeights::Acquire(int layer, MatrixProducts& products, Instant deadline) {
  Slot& slot = SlotOf(layer);
  MutexLock lock(&mutex_);
  while (slot.layer != layer) {
    RF_RETURN_IF_ERROR(aborted_);
    if (slot.readers == 0) {
      slot.layer = layer;
      slot.next_piece = 0;
      slot.done_pieces = 0;
      slot.readers = users_;
      break;
    }
    if (!changed_.WaitUntil(&mutex_, deadline)) {
      return absl::DeadlineExceededError("waited too long for another rank to leave a layer");
    }
  }
  while (slot.next_piece < kLayerMatrices) {
    // The largest matrices come last in the enum; taking them first balances the helpers.
    const int piece = kLayerMatrices - 1 - slot.next_piece++;
    mutex_.Unlock();
    const auto m = static_cast<LayerMatrix>(piece);
    products.Pack(GetMatrix(model_.layers()[static_cast<size_t>(layer)], m), 0, format(m),
                  slot.storage.data() + offsets_[static_cast<size_t>(piece)]);
    mutex_.Lock();
    if (++slot.done_pieces == kLayerMatrices) changed_.SignalAll();
  }
  while (slot.done_pieces < kLayerMatrices) {
    RF_RETURN_IF_ERROR(aborted_);
    if (!changed_.WaitUntil(&mutex_, deadline)) {
      return absl::DeadlineExceededError("waited too long for a layer to be expanded");
    }
  }
  return absl::OkStatus();
}

void ExpandedWeights::Release(int layer) {
  if (layer < pinned_) return;
  MutexLock lock(&mutex_);
  Slot& slot = SlotOf(layer);
  RF_CHECK(slot.layer == layer && slot.readers > 0);
  if (--slot.readers == 0) {
    // The next layer of this slot, or this one in the next pass, starts afresh.
    slot.layer = -1;
    changed_.SignalAll();
  }
}

const std::byte* ExpandedWeights::packed(int layer, LayerMatrix m) const {
  return SlotOf(layer).storage.data() + offsets_[static_cast<size_t>(m)];
}

void ExpandedWeights::Abort(const absl::Status& status) {
  RF_CHECK(!status.ok());
  MutexLock lock(&mutex_);
  aborted_.Update(status);
  changed_.SignalAll();
}

void ExpandedWeights::Reset(int users) {
  RF_CHECK(users >= 1);
  MutexLock lock(&mutex_);
  users_ = users;
  aborted_ = absl::OkStatus();
  for (Slot& slot : slots_) {
    slot.layer = -1;
    slot.readers = 0;
  }
}

}  // namespace ringfill
