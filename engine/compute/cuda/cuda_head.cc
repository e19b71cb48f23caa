#include "engine/compute/cuda/cuda_head.h"

#include <algorithm>
#include <cstring>

#include "engine/compute/cuda/kernels/elementwise.h"
#include "engine/compute/cuda/kernels/sampling.h"

namespace ringfill {
namespace {

using gpu::Element;

// Bytes of `rows` of the head's input, as floats and then in bf16.
size_t FloatBytes(const CudaRank& rank, int64_t rows) {
  return static_cast<size_t>(rows * rank.config.width) * sizeof(float);
}
size_t Bf16Bytes(const CudaRank& rank, int64_t rows) {
  return static_cast<size_t>(rows * rank.config.width) * sizeof(Bf16);
}

// logits [rows][end - begin], rows ldy apart, of rows of input in bf16.
absl::Status Head(CudaRank& rank, const Bf16* input, int64_t rows, int64_t begin, int64_t end,
                  float* logits, int64_t ldy) {
  RF_ASSIGN_OR_RETURN(const Bf16* const w, rank.weights->OutputRows(begin, end));
  const int64_t width = rank.config.width;
  return rank.Multiply({.w = w,
                        .ldw = width,
                        .x = input,
                        .ldx = width,
                        .rows = rows,
                        .n = end - begin,
                        .k = width,
                        .y_type = Element::kF32,
                        .y = logits,
                        .ldy = ldy});
}

}  // namespace

absl::Status QueueOutputNorm(CudaRank& rank, const float* x, const int64_t* index, int64_t rows,
                             Element type, void* out) {
  return rank.Check(gpu::RmsNorm({.x = const_cast<float*>(x),
                                  .add = nullptr,
                                  .weight = rank.weights->output_norm(),
                                  .epsilon = rank.config.norm_epsilon,
                                  .rows = rows,
                                  .n = rank.config.width,
                                  .row_index = index,
                                  .out_type = type,
                                  .out = out},
                                 rank.stream.get()),
                    "RmsNorm");
}

absl::Status QueueHiddenRows(CudaRank& rank, const float* x, const std::vector<int64_t>& rows,
                             float* out) {
  if (rows.empty()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(rows.size());
  Upload lists(rank.stream, rank.upload);
  const auto rows_at = lists.Add(rows);
  RF_RETURN_IF_ERROR(lists.Send());
  const size_t bytes = FloatBytes(rank, count);
  RF_ASSIGN_OR_RETURN(std::byte* const hidden, rank.head_rows.Reserve(bytes));
  RF_RETURN_IF_ERROR(
      QueueOutputNorm(rank, x, lists.At<const int64_t>(rows_at), count, Element::kF32, hidden));
  return rank.CopyOut(hidden, bytes, out);
}

absl::Status QueueScoreRows(CudaRank& rank, const float* x,
                            const std::vector<Device::ScoreRow>& rows, float* out) {
  if (rows.empty()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t width = rank.config.width, vocab = rank.config.vocab;
  std::vector<int64_t> index;
  std::vector<int32_t> target;
  for (const Device::ScoreRow& row : rows) {
    index.push_back(row.row);
    target.push_back(row.target);
  }
  Upload lists(rank.stream, rank.upload);
  const auto index_at = lists.Add(index);
  const auto target_at = lists.Add(target);
  const auto state_at = lists.AddZeros(rows.size() * sizeof(gpu::ScoreState));
  const auto out_at = lists.AddZeros(rows.size() * sizeof(float));
  RF_RETURN_IF_ERROR(lists.Send());
  auto* const state = lists.At<gpu::ScoreState>(state_at);
  RF_ASSIGN_OR_RETURN(std::byte* const normed, rank.head_rows.Reserve(Bf16Bytes(rank, count)));
  RF_RETURN_IF_ERROR(
      QueueOutputNorm(rank, x, lists.At<const int64_t>(index_at), count, Element::kBF16, normed));
  const int64_t rows_each = std::min(count, kMostLogits / kVocabBlock);
  RF_ASSIGN_OR_RETURN(
      std::byte* const logits,
      rank.logits.Reserve(static_cast<size_t>(rows_each * kVocabBlock) * sizeof(float)));
  for (int64_t begin = 0; begin < vocab; begin += kVocabBlock) {
    const int64_t end = std::min(vocab, begin + kVocabBlock);
    for (int64_t row = 0; row < count; row += rows_each) {
      const int64_t n = std::min(rows_each, count - row);
      auto* const block = reinterpret_cast<float*>(logits);
      RF_RETURN_IF_ERROR(Head(rank, reinterpret_cast<const Bf16*>(normed) + row * width, n, begin,
                              end, block, end - begin));
      RF_RETURN_IF_ERROR(
          rank.Check(gpu::ScoreBlock({.logits = block,
                                      .rows = n,
                                      .begin = begin,
                                      .count = end - begin,
                                      .target = lists.At<const int32_t>(target_at) + row,
                                      .state = state + row},
                                     rank.stream.get()),
                     "ScoreBlock"));
    }
  }
  RF_RETURN_IF_ERROR(rank.Check(
      gpu::FinishScores(state, count, lists.At<float>(out_at), rank.stream.get()), "FinishScores"));
  return rank.CopyOut(lists.At<const std::byte>(out_at), rows.size() * sizeof(float), out);
}

absl::Status QueueLogits(CudaRank& rank, const float* hidden, int64_t rows, int64_t vocab_begin,
                         int64_t vocab_end, float* out) {
  const int64_t slice = vocab_end - vocab_begin, width = rank.config.width;
  if (rows == 0 || slice == 0) return absl::OkStatus();
  const int64_t rows_each = std::clamp<int64_t>(kMostLogits / slice, 1, rows);
  RF_ASSIGN_OR_RETURN(std::byte* const logits,
                      rank.logits.Reserve(static_cast<size_t>(rows_each * slice) * sizeof(float)));
  const size_t floats = FloatBytes(rank, rows_each);
  RF_ASSIGN_OR_RETURN(std::byte* const input,
                      rank.head_rows.Reserve(floats + Bf16Bytes(rank, rows_each)));
  auto* const narrow = reinterpret_cast<Bf16*>(input + floats);
  for (int64_t row = 0; row < rows; row += rows_each) {
    const int64_t n = std::min(rows_each, rows - row);
    std::byte* const pinned = rank.stream.Pinned(FloatBytes(rank, n));
    std::memcpy(pinned, hidden + row * width, FloatBytes(rank, n));
    RF_RETURN_IF_CUDA_ERROR(
        rank.gpu.index, cudaMemcpyAsync(input, pinned, FloatBytes(rank, n), cudaMemcpyHostToDevice,
                                        rank.stream.get()));
    RF_RETURN_IF_ERROR(
        rank.Check(gpu::ConvertFloats(reinterpret_cast<const float*>(input), n * width,
                                      Element::kBF16, narrow, rank.stream.get()),
                   "ConvertFloats"));
    auto* const y = reinterpret_cast<float*>(logits);
    for (int64_t begin = vocab_begin; begin < vocab_end; begin += kVocabBlock) {
      const int64_t end = std::min(vocab_end, begin + kVocabBlock);
      RF_RETURN_IF_ERROR(Head(rank, narrow, n, begin, end, y + (begin - vocab_begin), slice));
    }
    RF_RETURN_IF_ERROR(
        rank.CopyOut(logits, static_cast<size_t>(n * slice) * sizeof(float), out + row * slice));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
