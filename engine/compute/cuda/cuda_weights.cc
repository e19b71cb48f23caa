#include "engine/compute/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/kernels/weights.h"

namespace ringfill {
namespace {

// Of the file, in one copy.
constexpr size_t kCopyBytes = size_t{8} << 20;
constexpr size_t kMatrixAlignment = 256;

// No copy takes longer: the GPU hangs.
constexpr Duration kCopyLimit = std::chrono::minutes(1);

Instant CopyDeadline() { return Clock::Real().Now() + kCopyLimit; }

size_t StoredBytes(const WeightMatrix& w) {
  return static_cast<size_t>(w.rows) * WeightRowBytes(w.type, w.cols);
}
size_t Weights(const WeightMatrix& w) { return static_cast<size_t>(w.rows * w.cols); }
size_t Aligned(size_t bytes) {
  return (bytes + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
}

std::vector<const WeightMatrix*> MatricesOf(const LayerWeights& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

gpu::StoredWeight StoredType(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return gpu::StoredWeight::kF32;
    case WeightType::kF16:
      return gpu::StoredWeight::kF16;
    case WeightType::kBF16:
      return gpu::StoredWeight::kBF16;
    case WeightType::kQ4_0:
      return gpu::StoredWeight::kQ4_0;
    case WeightType::kQ4_1:
      return gpu::StoredWeight::kQ4_1;
    case WeightType::kQ8_0:
      return gpu::StoredWeight::kQ8_0;
  }
  return gpu::StoredWeight::kF32;
}

bool Tied(const Model& model) { return model.output().data == model.embedding().data; }

}  // namespace

CudaWeights::CudaWeights(const Model& model, const CudaWeightsPlan& plan, CudaMemory& memory,
                         std::function<bool()> stopped)
    : model_(model),
      config_(model.config()),
      plan_(plan),
      memory_(memory),
      stopped_(std::move(stopped)),
      bounce_(memory, "weight upload"),
      output_block_(memory, "output head") {
  RF_CHECK(plan.expanded_layers >= std::min(2, config_.layers));
  resident_ = plan.expanded_layers >= config_.layers ? config_.layers : plan.expanded_layers - 2;
}

absl::StatusOr<std::unique_ptr<CudaWeights>> CudaWeights::Load(const Model& model,
                                                               const CudaWeightsPlan& plan,
                                                               CudaMemory& memory,
                                                               std::function<bool()> stopped) {
  std::unique_ptr<CudaWeights> weights(new CudaWeights(model, plan, memory, std::move(stopped)));
  RF_RETURN_IF_ERROR(weights->UploadAll());
  weights->stopped_ = nullptr;  // who asks may go
  return weights;
}

absl::Status CudaWeights::UploadAll() {
  const int places = std::min(config_.layers, plan_.expanded_layers);
  const CudaWeightBytes bytes = CudaWeightBytes::Of(model_);
  layer_bytes_ = bytes.expanded_layer;
  RF_ASSIGN_OR_RETURN(
      expanded_, memory_.Allocate(static_cast<size_t>(places) * bytes.expanded_layer, "weights",
                                  MemoryPool::kWeights));
  RF_RETURN_IF_ERROR(UploadNorms());
  RF_ASSIGN_OR_RETURN(embedding_, Store({&model_.embedding()}, "embedding"));
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& w = model_.layers()[static_cast<size_t>(layer)];
    if (layer >= resident_) {
      RF_ASSIGN_OR_RETURN(StoredLayer stored, Store(MatricesOf(w), "stored weights"));
      stored_.push_back(std::move(stored));
      continue;
    }
    Bf16* to = PlaceOf(layer);
    for (const WeightMatrix* m : MatricesOf(w)) {
      RF_RETURN_IF_ERROR(ExpandFromFile(*m, to));
      to += Weights(*m);
    }
  }
  if (plan_.expanded_output) {
    RF_ASSIGN_OR_RETURN(expanded_output_, memory_.Allocate(bytes.expanded_output, "output head",
                                                           MemoryPool::kWeights));
    RF_RETURN_IF_ERROR(
        ExpandFromFile(model_.output(), reinterpret_cast<Bf16*>(expanded_output_.data())));
  } else if (!Tied(model_)) {
    RF_ASSIGN_OR_RETURN(output_, Store({&model_.output()}, "output head"));
  }
  copies_.clear();
  RF_RETURN_IF_ERROR(memory_.stream().Synchronize(CopyDeadline()));
  bounce_.Drop();
  return absl::OkStatus();
}

absl::Status CudaWeights::UploadNorms() {
  const auto width = static_cast<size_t>(config_.width);
  std::vector<float> all;
  for (const LayerWeights& layer : model_.layers()) {
    all.insert(all.end(), layer.attention_norm.begin(), layer.attention_norm.end());
    all.insert(all.end(), layer.ffn_norm.begin(), layer.ffn_norm.end());
  }
  all.insert(all.end(), model_.output_norm().begin(), model_.output_norm().end());
  RF_CHECK(all.size() == (2 * model_.layers().size() + 1) * width);
  RF_ASSIGN_OR_RETURN(
      norms_, memory_.Allocate(all.size() * sizeof(float), "weights", MemoryPool::kWeights));
  return CopyIn(reinterpret_cast<const std::byte*>(all.data()), all.size() * sizeof(float),
                norms_.data());
}

absl::Status CudaWeights::Pace() {
  copies_.push_back(memory_.stream().Record());
  if (copies_.size() <= 2) return absl::OkStatus();
  const EventPtr oldest = copies_.front();
  copies_.erase(copies_.begin());
  if (stopped_ && stopped_()) return absl::CancelledError("told to stop while weights came");
  return oldest->Await(CopyDeadline());
}

absl::Status CudaWeights::CopyIn(const std::byte* from, size_t bytes, std::byte* to) {
  CudaStream& stream = memory_.stream();
  for (size_t at = 0; at < bytes; at += kCopyBytes) {
    const size_t n = std::min(kCopyBytes, bytes - at);
    stream.Enqueue({.kind = OpKind::kLayers}, [&](cudaStream_t on) {
      std::byte* const pinned = stream.Pinned(n);
      std::memcpy(pinned, from + at, n);
      return CudaStatus(cudaMemcpyAsync(to + at, pinned, n, cudaMemcpyHostToDevice, on),
                        "cudaMemcpyAsync", stream.device());
    });
    RF_RETURN_IF_ERROR(Pace());
  }
  return stream.status();
}

absl::Status CudaWeights::Expand(const WeightMatrix& w, const std::byte* stored, int64_t rows,
                                 Bf16* to) {
  CudaStream& stream = memory_.stream();
  return LaunchStatus(gpu::ExpandWeights(StoredType(w.type), stored, rows * w.cols,
                                         gpu::Element::kBF16, to, stream.get()),
                      "ExpandWeights", stream.device());
}

absl::Status CudaWeights::ExpandFromFile(const WeightMatrix& w, Bf16* to) {
  CudaStream& stream = memory_.stream();
  const size_t row_bytes = WeightRowBytes(w.type, w.cols);
  const int64_t rows_each = std::max<int64_t>(1, static_cast<int64_t>(kCopyBytes / row_bytes));
  for (int64_t row = 0; row < w.rows; row += rows_each) {
    const int64_t rows = std::min(rows_each, w.rows - row);
    const size_t bytes = static_cast<size_t>(rows) * row_bytes;
    RF_ASSIGN_OR_RETURN(std::byte* const bounce, bounce_.Reserve(std::max(bytes, kCopyBytes)));
    RF_RETURN_IF_ERROR(CopyIn(w.Row(row), bytes, bounce));
    stream.Enqueue({.kind = OpKind::kLayers},
                   [&](cudaStream_t) { return Expand(w, bounce, rows, to + row * w.cols); });
  }
  return stream.status();
}

absl::StatusOr<CudaWeights::StoredLayer> CudaWeights::Store(
    const std::vector<const WeightMatrix*>& matrices, std::string_view what) {
  StoredLayer stored;
  size_t bytes = 0;
  for (const WeightMatrix* w : matrices) {
    stored.offsets.push_back(bytes);
    bytes += Aligned(StoredBytes(*w));
  }
  RF_ASSIGN_OR_RETURN(stored.buffer, memory_.Allocate(bytes, what, MemoryPool::kWeights));
  for (size_t i = 0; i < matrices.size(); ++i) {
    RF_RETURN_IF_ERROR(CopyIn(matrices[i]->data, StoredBytes(*matrices[i]),
                              stored.buffer.data() + stored.offsets[i]));
  }
  return stored;
}

Bf16* CudaWeights::PlaceOf(int layer) const {
  const int place = layer < resident_ ? layer : resident_ + (layer - resident_) % 2;
  return reinterpret_cast<Bf16*>(expanded_.data() + static_cast<size_t>(place) * layer_bytes_);
}

absl::StatusOr<CudaWeights::Layer> CudaWeights::ForLayer(int layer) {
  const LayerWeights& w = model_.layers()[static_cast<size_t>(layer)];
  Bf16* const at = PlaceOf(layer);
  if (layer >= resident_ && place_holds_[(layer - resident_) % 2] != layer) {
    int& holds = place_holds_[(layer - resident_) % 2];
    holds = -1;  // an expansion that fails leaves neither layer
    const StoredLayer& stored = stored_[static_cast<size_t>(layer - resident_)];
    const std::vector<const WeightMatrix*> matrices = MatricesOf(w);
    Bf16* to = at;
    for (size_t i = 0; i < matrices.size(); ++i) {
      RF_RETURN_IF_ERROR(
          Expand(*matrices[i], stored.buffer.data() + stored.offsets[i], matrices[i]->rows, to));
      to += Weights(*matrices[i]);
    }
    holds = layer;
  }
  Layer out;
  const auto* const norms = reinterpret_cast<const float*>(norms_.data());
  out.attention_norm = norms + int64_t{2} * layer * config_.width;
  out.ffn_norm = out.attention_norm + config_.width;
  out.qkv = at;
  out.o = out.qkv + Weights(w.q) + Weights(w.k) + Weights(w.v);
  out.gate_up = out.o + Weights(w.o);
  out.down = out.gate_up + Weights(w.gate) + Weights(w.up);
  return out;
}

absl::Status CudaWeights::Embed(const int32_t* token, int64_t rows, float* x) {
  CudaStream& stream = memory_.stream();
  return LaunchStatus(
      gpu::ExpandRows(StoredType(model_.embedding().type), embedding_.buffer.data(), config_.width,
                      token, rows, gpu::Element::kF32, x, stream.get()),
      "ExpandRows", stream.device());
}

const float* CudaWeights::output_norm() const {
  return reinterpret_cast<const float*>(norms_.data()) +
         int64_t{2} * config_.layers * config_.width;
}

absl::StatusOr<const Bf16*> CudaWeights::OutputRows(int64_t begin, int64_t end) {
  if (plan_.expanded_output) {
    return reinterpret_cast<const Bf16*>(expanded_output_.data()) + begin * config_.width;
  }
  const WeightMatrix& w = model_.output();
  const StoredLayer& stored = Tied(model_) ? embedding_ : output_;
  // Rows have an even number of bytes: those from an even one on are aligned to 4.
  const int64_t first = begin / 2 * 2;
  const size_t bytes = static_cast<size_t>((end - first) * w.cols) * sizeof(Bf16);
  RF_ASSIGN_OR_RETURN(std::byte* const to, output_block_.Reserve(bytes));
  RF_RETURN_IF_ERROR(
      Expand(w, stored.buffer.data() + static_cast<size_t>(first) * WeightRowBytes(w.type, w.cols),
             end - first, reinterpret_cast<Bf16*>(to)));
  return reinterpret_cast<const Bf16*>(to) + (begin - first) * w.cols;
}

}  // namespace ringfill
