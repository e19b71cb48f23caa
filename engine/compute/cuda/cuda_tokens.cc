#include "engine/compute/cuda/cuda_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/compute/cuda/cuda_head.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/kernels/elementwise.h"
#include "engine/compute/cuda/kernels/rope.h"
#include "engine/compute/cuda/run_lists.h"

namespace ringfill {
namespace {

using gpu::Element;

constexpr char kScratch[] = "token scratch";
// Blocks of attention that each processor should have.
constexpr int kBlocksEach = 2;
// Slices of the hidden dimension are multiples of this where it is one: what tensor cores like.
constexpr int64_t kHiddenBlock = 16;

// Consecutive tokens of one run whose visible lengths do not fall.
std::vector<gpu::TokenSpan> SpansOf(const Device::TokenBatch& batch) {
  std::vector<gpu::TokenSpan> spans;
  for (int64_t t = 0; t < batch.tokens(); ++t) {
    const auto i = static_cast<size_t>(t);
    const bool joins = !spans.empty() && batch.run[i] == batch.run[i - 1] &&
                       batch.visible[i] >= batch.visible[i - 1];
    if (!joins)
      spans.push_back({.token = t, .tokens = 0, .run = batch.run[i], .bit = 0, .visible = 0});
    ++spans.back().tokens;
    spans.back().visible = batch.visible[i];
  }
  return spans;
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
      parts_(rank.memory, kScratch) {}

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
  return static_cast<size_t>(tokens * floats) * sizeof(float);
}

absl::Status CudaTokens::ReserveScratch() {
  const auto n = static_cast<size_t>(tokens());
  const auto reserve = [n](CudaScratch& scratch, int64_t values, size_t element) {
    return scratch.Reserve(n * static_cast<size_t>(values) * element).status();
  };
  RF_RETURN_IF_ERROR(reserve(x_, config_.width, sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(angles_, std::max(config_.rope.rope_dims, 1), sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(q_, config_.q_width(), sizeof(Bf16)));
  RF_RETURN_IF_ERROR(reserve(rank_.normed, config_.width, sizeof(Bf16)));
  RF_RETURN_IF_ERROR(reserve(rank_.qkv, rank_.qkv_width(), sizeof(float)));
  RF_RETURN_IF_ERROR(reserve(rank_.attention, config_.q_width(), sizeof(Bf16)));
  return reserve(rank_.gate_up, 2 * config_.ffn_width, sizeof(Bf16));
}

absl::Status CudaTokens::SendLists() {
  std::vector<gpu::KvTarget> targets(static_cast<size_t>(tokens()));
  for (const KvStore& store : batch_->stores) {
    for (int i = 0; i < store.rows; ++i) {
      gpu::KvTarget& target = targets[static_cast<size_t>(store.row + i)];
      target.page = store.page;
      target.token_in_page = store.token_in_page + i;
    }
  }
  const RunLists runs(batch_->runs, false);
  const gpu::DecodePlan plan =
      gpu::PlanDecode(SpansOf(*batch_), {.group = rank_.group(),
                                         .kv_heads = config_.kv_heads,
                                         .blocks = kBlocksEach * rank_.gpu.processors});
  Upload lists(rank_.stream, lists_memory_);
  const auto token_at = lists.Add(batch_->token);
  const auto position_at = lists.Add(batch_->position);
  const auto targets_at = lists.Add(targets);
  const auto runs_at = lists.Add(runs.views);
  const auto pages_at = lists.Add(runs.pages);
  const auto visible_at = lists.Add(batch_->visible);
  const auto work_at = lists.Add(plan.work);
  const auto merge_at = lists.Add(plan.merge);
  RF_RETURN_IF_ERROR(lists.Send());
  lists_ = {.targets = lists.At<const gpu::KvTarget>(targets_at),
            .runs = lists.At<const gpu::KvRunView>(runs_at),
            .pages = lists.At<const uint32_t>(pages_at),
            .visible = lists.At<const int64_t>(visible_at),
            .work = lists.At<const gpu::DecodeWork>(work_at),
            .merge = lists.At<const gpu::MergeWork>(merge_at),
            .works = static_cast<int>(plan.work.size()),
            .merges = static_cast<int>(plan.merge.size()),
            .parts = plan.parts};
  RF_RETURN_IF_ERROR(rank_.weights->Embed(lists.At<const int32_t>(token_at), tokens(), x()));
  return rank_.Check(gpu::RopeAngles(lists.At<const int64_t>(position_at), tokens(),
                                     reinterpret_cast<const double*>(rank_.frequency.data()),
                                     config_.rope.rope_dims,
                                     reinterpret_cast<float*>(angles_.data()), rank_.stream.get()),
                     "RopeAngles");
}

absl::Status CudaTokens::Begin(std::shared_ptr<const Batch> batch) {
  batch_ = std::move(batch);
  if (tokens() == 0) return absl::OkStatus();
  RF_RETURN_IF_ERROR(ReserveScratch());
  RF_RETURN_IF_ERROR(SendLists());
  const int64_t rows = lists_.parts * config_.kv_heads * gpu::kDecodeRows;
  return parts_.Reserve(static_cast<size_t>(rows * (2 + config_.head_dim)) * sizeof(float))
      .status();
}

absl::Status CudaTokens::Norm(const float* weight) {
  return rank_.Check(gpu::RmsNorm({.x = x(),
                                   .add = nullptr,
                                   .weight = weight,
                                   .epsilon = config_.norm_epsilon,
                                   .rows = tokens(),
                                   .n = config_.width,
                                   .row_index = nullptr,
                                   .out_type = Element::kBF16,
                                   .out = rank_.normed.data()},
                                  rank_.stream.get()),
                     "RmsNorm");
}

absl::Status CudaTokens::Qkv(int layer, float* send) {
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  RF_RETURN_IF_ERROR(Norm(w.attention_norm));
  // The rows of q, k and v lie end to end, as their slices do.
  const Slice mine = SliceOf(rank_.qkv_width(), 1, batch_->rank, batch_->ranks);
  return Multiply({.w = w.qkv + mine.begin * config_.width,
                   .ldw = config_.width,
                   .x = rank_.normed.data(),
                   .ldx = config_.width,
                   .rows = tokens(),
                   .n = mine.size(),
                   .k = config_.width,
                   .y_type = Element::kF32,
                   .y = send,
                   .ldy = LargestSlice(rank_.qkv_width(), 1, batch_->ranks)});
}

absl::Status CudaTokens::Attend(int layer, const float* gathered, float* send) {
  const int64_t qkv_width = rank_.qkv_width();
  auto* const qkv = reinterpret_cast<float*>(rank_.qkv.data());
  const cudaStream_t stream = rank_.stream.get();
  RF_RETURN_IF_ERROR(
      rank_.Check(gpu::JoinSlices({.gathered = gathered,
                                   .ranks = batch_->ranks,
                                   .tokens = tokens(),
                                   .width = qkv_width,
                                   .stride = LargestSlice(qkv_width, 1, batch_->ranks),
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
                                       .rows = tokens(),
                                       .first_row = 0,
                                       .all_rows = tokens(),
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
  RF_RETURN_IF_ERROR(rank_.Check(
      gpu::AttendDecode(
          {.attention = {.type = Element::kBF16,
                         .head_dim = config_.head_dim,
                         .kv_heads = config_.kv_heads,
                         .group = rank_.group(),
                         .tokens = tokens(),
                         .q = q_.data(),
                         .state = rank_.States(reinterpret_cast<std::byte*>(send), tokens()),
                         .clear = true,
                         .kv = rank_.Pages(layer),
                         .page_table = lists_.pages,
                         .runs = lists_.runs,
                         .visible = lists_.visible,
                         .begin = nullptr},
           .work = lists_.work,
           .works = lists_.works,
           .parts = PartStates(parts_.data(), lists_.parts * config_.kv_heads * gpu::kDecodeRows),
           .merge = lists_.merges > 0 ? lists_.merge : nullptr,
           .merges = lists_.merges},
          stream),
      "AttendDecode"));
  int64_t pairs = 0;
  for (const int64_t visible : batch_->visible) pairs += visible;
  rank_.stream.Then([&rank = rank_, pairs] {
    rank.attention_pairs.fetch_add(pairs, std::memory_order_relaxed);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status CudaTokens::Output(int layer, const float* gathered, float* send) {
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  const int64_t rows = tokens() * config_.heads;
  RF_RETURN_IF_ERROR(rank_.Check(gpu::NormalizeStates({.max = gathered,
                                                       .sum = gathered + rows,
                                                       .acc = gathered + 2 * rows,
                                                       .parts = batch_->ranks,
                                                       .part_stride = rows * (2 + config_.head_dim),
                                                       .kv_heads = config_.kv_heads,
                                                       .group = rank_.group(),
                                                       .head_dim = config_.head_dim,
                                                       .tokens = tokens(),
                                                       .out_type = Element::kBF16,
                                                       .out = rank_.attention.data()},
                                                      rank_.stream.get()),
                                 "NormalizeStates"));
  const int64_t q_width = config_.q_width();
  const Slice mine = SliceOf(config_.width, 1, batch_->rank, batch_->ranks);
  return Multiply({.w = w.o + mine.begin * q_width,
                   .ldw = q_width,
                   .x = rank_.attention.data(),
                   .ldx = q_width,
                   .rows = tokens(),
                   .n = mine.size(),
                   .k = q_width,
                   .y_type = Element::kF32,
                   .y = send,
                   .ldy = LargestSlice(config_.width, 1, batch_->ranks)});
}

Slice CudaTokens::HiddenSlice() const {
  const int64_t block = config_.ffn_width % kHiddenBlock == 0 ? kHiddenBlock : 1;
  return SliceOf(config_.ffn_width, block, batch_->rank, batch_->ranks);
}

absl::Status CudaTokens::Ffn(int layer, const float* gathered, float* send) {
  RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(layer));
  const int64_t width = config_.width, ffn = config_.ffn_width;
  const cudaStream_t stream = rank_.stream.get();
  RF_RETURN_IF_ERROR(rank_.Check(gpu::JoinSlices({.gathered = gathered,
                                                  .ranks = batch_->ranks,
                                                  .tokens = tokens(),
                                                  .width = width,
                                                  .stride = LargestSlice(width, 1, batch_->ranks),
                                                  .add = true,
                                                  .out = x()},
                                                 stream),
                                 "JoinSlices"));
  RF_RETURN_IF_ERROR(Norm(w.ffn_norm));
  const Slice hidden = HiddenSlice();
  if (hidden.size() == 0) {
    return CudaStatus(
        cudaMemsetAsync(send, 0, static_cast<size_t>(tokens() * width) * sizeof(float), stream),
        "cudaMemsetAsync", rank_.gpu.index);
  }
  auto* const gate = reinterpret_cast<Bf16*>(rank_.gate_up.data());
  Product product{.w = w.gate_up + hidden.begin * width,
                  .ldw = width,
                  .x = rank_.normed.data(),
                  .ldx = width,
                  .rows = tokens(),
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
                                               .rows = tokens(),
                                               .n = hidden.size(),
                                               .gate_stride = 2 * hidden.size(),
                                               .out_stride = 2 * hidden.size()},
                                              stream),
                                 "SiluMul"));
  // Partial sums over the slice.
  return Multiply({.w = w.down + hidden.begin,
                   .ldw = ffn,
                   .x = gate,
                   .ldx = 2 * hidden.size(),
                   .rows = tokens(),
                   .n = width,
                   .k = hidden.size(),
                   .y_type = Element::kF32,
                   .y = send,
                   .ldy = width});
}

absl::Status CudaTokens::EndLayer(const float* gathered) {
  return rank_.Check(
      gpu::AddParts(x(), gathered, batch_->ranks, tokens() * config_.width, rank_.stream.get()),
      "AddParts");
}

absl::Status CudaTokens::Hidden(float* out) {
  const size_t bytes = static_cast<size_t>(tokens() * config_.width) * sizeof(float);
  RF_ASSIGN_OR_RETURN(std::byte* const hidden, rank_.head_rows.Reserve(bytes));
  RF_RETURN_IF_ERROR(QueueOutputNorm(rank_, x(), nullptr, tokens(), Element::kF32, hidden));
  return rank_.CopyOut(hidden, bytes, out);
}

}  // namespace ringfill
