#include "engine/compute/cuda/cuda_tokens.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "engine/compute/cuda/cuda_head.h"
#include "engine/compute/cuda/kernels/elementwise.h"
#include "engine/compute/cuda/kernels/rope.h"
#include "engine/stream/round_header.h"

namespace ringfill {
namespace {

using gpu::Element;

constexpr char kScratch[] = "token scratch";
// Blocks of attention that each processor should have.
constexpr int kBlocksEach = 2;
// Slices of the hidden dimension are multiples of this where it is one: what tensor cores like.
constexpr int64_t kHiddenBlock = 16;
// Of lists: decodes of some prompts of 100,000 tokens.
constexpr size_t kLeastListBytes = size_t{256} << 10;
// Of a layer.
constexpr int kStages = 4;
// The room for a RoundHeader before a part of kQkv. Its words must be aligned in every rank's part,
// also where a slice has an odd number of columns.
constexpr int64_t kHeaderFloats = sizeof(RoundHeader) / sizeof(float);
constexpr int64_t kHeaderAlignment = sizeof(uint64_t) / sizeof(float);

// Where a fault was seen, as one number that is not 0, and back.
unsigned PlaceOf(int layer, Device::TokenStage stage) {
  return static_cast<unsigned>(layer * kStages + static_cast<int>(stage)) + 1;
}
Device::TokenFault FaultAt(unsigned place) {
  const int index = static_cast<int>(place - 1);
  return {index / kStages, static_cast<Device::TokenStage>(index % kStages)};
}

gpu::SoftmaxArrays PartStates(std::byte* memory, int64_t rows) {
  auto* const at = reinterpret_cast<float*>(memory);
  return {at, at + rows, at + 2 * rows};
}

}  // namespace

CudaTokens::CudaTokens(CudaRank& rank)
    : rank_(rank),
      config_(rank.config),
      lists_memory_(rank.memory, kScratch),
      x_(rank.memory, kScratch),
      angles_(rank.memory, kScratch),
      q_(rank.memory, kScratch),
      parts_(rank.memory, kScratch),
      faults_(rank.memory, kScratch),
      graphs_(rank.gpu.index) {}

size_t CudaTokens::StageBytes(const ModelConfig& config, Device::TokenStage stage, int64_t tokens,
                              int ranks) {
  int64_t floats = 0;  // of a token
  switch (stage) {
    case Device::TokenStage::kQkv:
      floats = LargestSlice(config.q_width() + 2 * config.kv_width(), 1, ranks);
      break;
    case Device::TokenStage::kStates:
      floats = int64_t{config.heads} * (2 + config.head_dim);
      break;
    case Device::TokenStage::kOutput:
      floats = LargestSlice(config.width, 1, ranks);
      break;
    case Device::TokenStage::kFfn:
      floats = config.width;
      break;
  }
  floats *= PaddedTokens(tokens);
  if (stage == Device::TokenStage::kQkv) {
    floats = kHeaderFloats + (floats + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment;
  }
  return static_cast<size_t>(floats) * sizeof(float);
}

absl::Status CudaTokens::ReserveScratch() {
  // Room for all that may run as graphs, whose addresses so stay the same.
  const auto n = static_cast<size_t>(std::max(rows(), kGraphTokens));
  RF_RETURN_IF_ERROR(lists_memory_.Reserve(kLeastListBytes).status());
  const auto reserve = [n](CudaScratch& scratch, int64_t values, size_t element) {
    return scratch.Reserve(n * static_cast<size_t>(values) * element).status();
  };
  RF_RETURN_IF_ERROR(reserve(x_, config_.width, sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(angles_, std::max(config_.rope.rope_dims, 1), sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(faults_, 1, sizeof(unsigned)));
  RF_RETURN_IF_ERROR(reserve(q_, config_.q_width(), sizeof(Bf16)));
  RF_RETURN_IF_ERROR(reserve(rank_.normed, config_.width, sizeof(Bf16)));
  RF_RETURN_IF_ERROR(reserve(rank_.qkv, rank_.qkv_width(), sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(rank_.attention, config_.q_width(), sizeof(Bf16)));
  return reserve(rank_.gate_up, 2 * config_.ffn_width, sizeof(Bf16));
}

absl::Status CudaTokens::SendLists() {
  const TokenLists host(*batch_, {.group = rank_.group(),
                                  .kv_heads = config_.kv_heads,
                                  .blocks = kBlocksEach * rank_.gpu.processors});
  Upload lists(rank_.stream, lists_memory_);
  const auto token_at = lists.Add(host.token);
  const auto position_at = lists.Add(host.position);
  const auto targets_at = lists.Add(host.targets);
  const auto runs_at = lists.Add(host.runs);
  const auto begin_at = lists.Add(host.begin);
  const auto visible_at = lists.Add(host.visible);
  const auto work_at = lists.Add(host.work);
  const auto merge_at = lists.Add(host.merge);
  // Last, since their number changes most.
  const auto pages_at = lists.Add(host.pages);
  RF_RETURN_IF_ERROR(lists.Send());
  lists_ = {.token = lists.At<const int32_t>(token_at),
            .position = lists.At<const int64_t>(position_at),
            .targets = lists.At<const gpu::KvTarget>(targets_at),
            .runs = lists.At<const gpu::KvRunView>(runs_at),
            .pages = lists.At<const uint32_t>(pages_at),
            .begin = lists.At<const int64_t>(begin_at),
            .visible = lists.At<const int64_t>(visible_at),
            .work = lists.At<const gpu::DecodeWork>(work_at),
            .merge = lists.At<const gpu::MergeWork>(merge_at),
            .works = static_cast<int>(host.work.size()),
            .merges = static_cast<int>(host.merge.size()),
            .parts = host.parts};
  const int64_t part_rows = lists_.parts * config_.kv_heads * gpu::kDecodeRows;
  RF_RETURN_IF_ERROR(
      parts_.Reserve(static_cast<size_t>(part_rows * (2 + config_.head_dim)) * sizeof(float))
          .status());
  ChooseGraphs();
  return absl::OkStatus();
}

// Names everything that launches of a stage are made of, except its layer and buffers.
void CudaTokens::ChooseGraphs() {
  if (tokens() > kGraphTokens) return graphs_.BeginPlain();
  CudaGraphs::Shape shape = {
      static_cast<uint64_t>(rows()),        static_cast<uint64_t>(batch_->rank),
      static_cast<uint64_t>(batch_->ranks), static_cast<uint64_t>(lists_.works),
      static_cast<uint64_t>(lists_.merges), static_cast<uint64_t>(lists_.parts)};
  for (const void* at : std::initializer_list<const void*>{
           lists_.targets, lists_.runs, lists_.begin, lists_.visible, lists_.work, lists_.merge,
           lists_.pages, x_.data(), angles_.data(), q_.data(), parts_.data(), faults_.data(),
           rank_.normed.data(), rank_.qkv.data(), rank_.attention.data(), rank_.gate_up.data()}) {
    shape.push_back(reinterpret_cast<uintptr_t>(at));
  }
  graphs_.Begin(shape);
}

absl::Status CudaTokens::Begin(std::shared_ptr<const Batch> batch) {
  batch_ = std::move(batch);
  if (tokens() == 0) return absl::OkStatus();
  RF_RETURN_IF_ERROR(ReserveScratch());
  RF_RETURN_IF_ERROR(SendLists());
  RF_RETURN_IF_CUDA_ERROR(
      rank_.gpu.index,
      cudaMemsetAsync(faults_.data(), 0, static_cast<size_t>(rows()) * sizeof(unsigned),
                      rank_.stream.get()));
  RF_RETURN_IF_ERROR(rank_.weights->Embed(lists_.token, rows(), x()));
  return rank_.Check(gpu::RopeAngles(lists_.position, rows(),
                                     reinterpret_cast<const double*>(rank_.frequency.data()),
                                     config_.rope.rope_dims,
                                     reinterpret_cast<float*>(angles_.data()), rank_.stream.get()),
                     "RopeAngles");
}

absl::Status CudaTokens::Stop(std::shared_ptr<const Batch> rest) {
  batch_ = std::move(rest);
  return tokens() == 0 ? absl::OkStatus() : SendLists();
}

absl::Status CudaTokens::RunStage(Stage stage, int layer, const float* in, float* out,
                                  const std::function<absl::Status()>& launches) {
  // Layers that are expanded anew for each step launch more, or less.
  if (!rank_.weights->Resident(layer)) return launches();
  const int place = layer * kStages + static_cast<int>(stage);
  return graphs_.Run({.place = place, .in = in, .out = out}, rank_.stream.get(), launches);
}

absl::Status CudaTokens::NoteFaults(int layer, Stage stage, const Values& values) {
  return rank_.Check(gpu::NoteFaults({.x = values.first,
                                      .tokens = rows(),
                                      .token_stride = values.token_stride,
                                      .pieces = values.pieces,
                                      .piece_stride = values.piece_stride,
                                      .floats = values.floats,
                                      .place = PlaceOf(layer, stage),
                                      .first = reinterpret_cast<unsigned*>(faults_.data())},
                                     rank_.stream.get()),
                     "NoteFaults");
}

// Maxima may be -inf; where one is not finite otherwise, neither is the sum.
absl::Status CudaTokens::NoteStateFaults(int layer, const gpu::SoftmaxArrays& states) {
  const int64_t group = rank_.group(), dim = config_.head_dim;
  RF_RETURN_IF_ERROR(NoteFaults(layer, Stage::kStates,
                                {.first = states.sum,
                                 .token_stride = group,
                                 .pieces = config_.kv_heads,
                                 .piece_stride = rows() * group,
                                 .floats = group}));
  return NoteFaults(layer, Stage::kStates,
                    {.first = states.acc,
                     .token_stride = group * dim,
                     .pieces = config_.kv_heads,
                     .piece_stride = rows() * group * dim,
                     .floats = group * dim});
}

absl::Status CudaTokens::Norm(const float* weight) {
  return rank_.Check(gpu::RmsNorm({.x = x(),
                                   .add = nullptr,
                                   .weight = weight,
                                   .epsilon = config_.norm_epsilon,
                                   .rows = rows(),
                                   .n = config_.width,
                                   .row_index = nullptr,
                                   .out_type = Element::kBF16,
                                   .out = rank_.normed.data()},
                                  rank_.stream.get()),
                     "RmsNorm");
}

absl::Status CudaTokens::Qkv(int layer, float* send) {
  return RunStage(Stage::kQkv, layer, nullptr, send, [&] { return LaunchQkv(layer, send); });
}

absl::Status CudaTokens::Attend(int layer, const float* gathered, float* send) {
  RF_RETURN_IF_ERROR(RunStage(Stage::kStates, layer, gathered, send,
                              [&] { return LaunchAttend(layer, gathered, send); }));
  SeenKeys seen;
  for (size_t t = 0; t < batch_->visible.size(); ++t) {
    seen.Add(batch_->visible[t] - batch_->BeginOf(t));
  }
  rank_.stream.Then([&rank = rank_, seen] {
    rank.seen.Add(seen);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status CudaTokens::Output(int layer, const float* gathered, float* send) {
  return RunStage(Stage::kOutput, layer, gathered, send,
                  [&] { return LaunchOutput(layer, gathered, send); });
}

absl::Status CudaTokens::Ffn(int layer, const float* gathered, float* send) {
  return RunStage(Stage::kFfn, layer, gathered, send,
                  [&] { return LaunchFfn(layer, gathered, send); });
}

absl::Status CudaTokens::LaunchQkv(int layer, float* send) {
  send += kHeaderFloats;
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  RF_RETURN_IF_ERROR(Norm(w.attention_norm));
  // The rows of q, k and v lie end to end, as their slices do.
  const Slice mine = SliceOf(rank_.qkv_width(), 1, batch_->rank, batch_->ranks);
  const int64_t stride = LargestSlice(rank_.qkv_width(), 1, batch_->ranks);
  RF_RETURN_IF_ERROR(Multiply({.w = w.qkv + mine.begin * config_.width,
                               .ldw = config_.width,
                               .x = rank_.normed.data(),
                               .ldx = config_.width,
                               .rows = rows(),
                               .n = mine.size(),
                               .k = config_.width,
                               .y_type = Element::kF32,
                               .y = send,
                               .ldy = stride}));
  return NoteFaults(layer, Stage::kQkv,
                    {.first = send, .token_stride = stride, .floats = mine.size()});
}

absl::Status CudaTokens::LaunchAttend(int layer, const float* gathered, float* send) {
  const int64_t qkv_width = rank_.qkv_width();
  auto* const qkv = reinterpret_cast<float*>(rank_.qkv.data());
  const cudaStream_t stream = rank_.stream.get();
  const int64_t stride = LargestSlice(qkv_width, 1, batch_->ranks);
  const size_t part = StageBytes(config_, Stage::kQkv, batch_->tokens(), batch_->ranks);
  RF_RETURN_IF_ERROR(
      rank_.Check(gpu::JoinSlices({.gathered = gathered + kHeaderFloats,
                                   .part_stride = static_cast<int64_t>(part / sizeof(float)),
                                   .ranks = batch_->ranks,
                                   .tokens = rows(),
                                   .width = qkv_width,
                                   .stride = stride,
                                   .add = false,
                                   .out = qkv},
                                  stream),
                  "JoinSlices"));
  RF_RETURN_IF_ERROR(
      rank_.Check(gpu::RotateAndStore({.q = qkv,
                                       .k = qkv + config_.q_width(),
                                       .v = qkv + config_.q_width() + config_.kv_width(),
                                       .q_stride = qkv_width,
                                       .kv_stride = qkv_width,
                                       .angles = reinterpret_cast<const float*>(angles_.data()),
                                       .rows = rows(),
                                       .first_row = 0,
                                       .all_rows = rows(),
                                       .kv_heads = config_.kv_heads,
                                       .group = rank_.group(),
                                       .head_dim = config_.head_dim,
                                       .rope_dims = config_.rope.rope_dims,
                                       .type = Element::kBF16,
                                       .packed_q = q_.data(),
                                       .targets = lists_.targets,
                                       .pages = rank_.Pages(layer),
                                       .outbox = nullptr},
                                      stream),
                  "RotateAndStore"));
  const gpu::SoftmaxArrays states = rank_.States(reinterpret_cast<std::byte*>(send), rows());
  RF_RETURN_IF_ERROR(rank_.Check(
      gpu::AttendDecode(
          {.attention = {.type = Element::kBF16,
                         .head_dim = config_.head_dim,
                         .kv_heads = config_.kv_heads,
                         .group = rank_.group(),
                         .tokens = rows(),
                         .q = q_.data(),
                         .state = states,
                         .clear = true,
                         .kv = rank_.Pages(layer),
                         .page_table = lists_.pages,
                         .runs = lists_.runs,
                         .visible = lists_.visible,
                         .begin = lists_.begin},
           .work = lists_.work,
           .works = lists_.works,
           .parts = PartStates(parts_.data(), lists_.parts * config_.kv_heads * gpu::kDecodeRows),
           .merge = lists_.merges > 0 ? lists_.merge : nullptr,
           .merges = lists_.merges},
          stream),
      "AttendDecode"));
  return NoteStateFaults(layer, states);
}

absl::Status CudaTokens::LaunchOutput(int layer, const float* gathered, float* send) {
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  const int64_t state_rows = rows() * config_.heads;
  RF_RETURN_IF_ERROR(
      rank_.Check(gpu::NormalizeStates({.max = gathered,
                                        .sum = gathered + state_rows,
                                        .acc = gathered + 2 * state_rows,
                                        .parts = batch_->ranks,
                                        .part_stride = state_rows * (2 + config_.head_dim),
                                        .kv_heads = config_.kv_heads,
                                        .group = rank_.group(),
                                        .head_dim = config_.head_dim,
                                        .tokens = rows(),
                                        .out_type = Element::kBF16,
                                        .out = rank_.attention.data()},
                                       rank_.stream.get()),
                  "NormalizeStates"));
  const int64_t q_width = config_.q_width();
  const Slice mine = SliceOf(config_.width, 1, batch_->rank, batch_->ranks);
  const int64_t stride = LargestSlice(config_.width, 1, batch_->ranks);
  RF_RETURN_IF_ERROR(Multiply({.w = w.o + mine.begin * q_width,
                               .ldw = q_width,
                               .x = rank_.attention.data(),
                               .ldx = q_width,
                               .rows = rows(),
                               .n = mine.size(),
                               .k = q_width,
                               .y_type = Element::kF32,
                               .y = send,
                               .ldy = stride}));
  return NoteFaults(layer, Stage::kOutput,
                    {.first = send, .token_stride = stride, .floats = mine.size()});
}

Slice CudaTokens::HiddenSlice() const {
  const int64_t block = config_.ffn_width % kHiddenBlock == 0 ? kHiddenBlock : 1;
  return SliceOf(config_.ffn_width, block, batch_->rank, batch_->ranks);
}

absl::Status CudaTokens::LaunchFfn(int layer, const float* gathered, float* send) {
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  const int64_t width = config_.width, ffn = config_.ffn_width;
  const cudaStream_t stream = rank_.stream.get();
  const int64_t stride = LargestSlice(width, 1, batch_->ranks);
  RF_RETURN_IF_ERROR(rank_.Check(gpu::JoinSlices({.gathered = gathered,
                                                  .part_stride = rows() * stride,
                                                  .ranks = batch_->ranks,
                                                  .tokens = rows(),
                                                  .width = width,
                                                  .stride = stride,
                                                  .add = true,
                                                  .out = x()},
                                                 stream),
                                 "JoinSlices"));
  RF_RETURN_IF_ERROR(Norm(w.ffn_norm));
  const Slice hidden = HiddenSlice();
  if (hidden.size() == 0) {
    return CudaStatus(
        cudaMemsetAsync(send, 0, static_cast<size_t>(rows() * width) * sizeof(float), stream),
        "cudaMemsetAsync", rank_.gpu.index);
  }
  auto* const gate = reinterpret_cast<Bf16*>(rank_.gate_up.data());
  Product product{.w = w.gate_up + hidden.begin * width,
                  .ldw = width,
                  .x = rank_.normed.data(),
                  .ldx = width,
                  .rows = rows(),
                  .n = hidden.size(),
                  .k = width,
                  .y_type = Element::kBF16,
                  .y = gate,
                  .ldy = 2 * hidden.size()};
  RF_RETURN_IF_ERROR(Multiply(product));
  product.w = w.gate_up + (ffn + hidden.begin) * width;
  product.y = gate + hidden.size();
  RF_RETURN_IF_ERROR(Multiply(product));
  RF_RETURN_IF_ERROR(rank_.Check(gpu::SiluMul({.type = Element::kBF16,
                                               .gate = gate,
                                               .up = gate + hidden.size(),
                                               .out = gate,
                                               .rows = rows(),
                                               .n = hidden.size(),
                                               .gate_stride = 2 * hidden.size(),
                                               .out_stride = 2 * hidden.size()},
                                              stream),
                                 "SiluMul"));
  // Partial sums over the slice.
  RF_RETURN_IF_ERROR(Multiply({.w = w.down + hidden.begin,
                               .ldw = ffn,
                               .x = gate,
                               .ldx = 2 * hidden.size(),
                               .rows = rows(),
                               .n = width,
                               .k = hidden.size(),
                               .y_type = Element::kF32,
                               .y = send,
                               .ldy = width}));
  return NoteFaults(layer, Stage::kFfn, {.first = send, .token_stride = width, .floats = width});
}

absl::Status CudaTokens::EndLayer(const float* gathered) {
  return rank_.Check(
      gpu::AddParts(x(), gathered, batch_->ranks, rows() * config_.width, rank_.stream.get()),
      "AddParts");
}

absl::Status CudaTokens::Hidden(float* out) {
  const size_t bytes = static_cast<size_t>(tokens() * config_.width) * sizeof(float);
  RF_ASSIGN_OR_RETURN(std::byte* const hidden, rank_.head_rows.Reserve(bytes));
  RF_RETURN_IF_ERROR(QueueOutputNorm(rank_, x(), nullptr, tokens(), Element::kF32, hidden));
  RF_RETURN_IF_ERROR(rank_.CopyOut(hidden, bytes, out));
  if (batch_->faults == nullptr) return absl::OkStatus();
  return rank_.CopyOut(faults_.data(), static_cast<size_t>(tokens()) * sizeof(unsigned),
                       [faults = batch_->faults](const std::byte* got) {
                         for (size_t t = 0; t < faults->size(); ++t) {
                           unsigned place = 0;
                           std::memcpy(&place, got + t * sizeof(place), sizeof(place));
                           if (place != 0) (*faults)[t] = FaultAt(place);
                         }
                         return absl::OkStatus();
                       });
}

}  // namespace ringfill
