#include <algorithm>
#include <cstring>

#include "engine/compute/cuda/cuda_rows.h"
#include "engine/compute/cuda/kernels/elementwise.h"
#include "engine/compute/cuda/kernels/rope.h"
#include "engine/compute/cuda/kernels/softmax.h"

namespace ringfill {
namespace {

using gpu::Element;

// Consecutive rows of a batch, at most kProductRows.
struct Piece {
  int64_t row, rows;
};

// The rows of the tiles that `wanted` takes, in pieces.
template <typename Wanted>
std::vector<Piece> PiecesOf(const RowBatch& batch, Wanted wanted) {
  std::vector<Piece> out;
  for (const RowTile& tile : batch.tiles) {
    if (!wanted(tile)) continue;
    const bool joins = !out.empty() && out.back().row + out.back().rows == tile.row &&
                       out.back().rows + tile.rows <= kProductRows;
    if (joins) {
      out.back().rows += tile.rows;
    } else {
      out.push_back({tile.row, tile.rows});
    }
  }
  return out;
}

int64_t RowsOf(const std::vector<Piece>& pieces) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  return rows;
}

// The operations of one RunLayers.
class LayerRun {
 public:
  LayerRun(CudaRank& rank, const Device::LayersArgs& args, const CudaRank::Rows& rows)
      : rank_(rank), config_(rank.config), args_(args), rows_(rows) {}

  absl::Status Run() {
    const RowBatch& batch = *args_.batch;
    const auto runs = [this](const RowTile& t) { return (t.chunks & ~args_.stopped) != 0; };
    std::vector<Piece> finish, project;
    if (args_.finish >= 0) {
      finish = PiecesOf(
          batch, [&](const RowTile& t) { return runs(t) && (t.wanted || !args_.only_wanted); });
    }
    if (args_.project >= 0) project = PiecesOf(batch, runs);
    RF_RETURN_IF_ERROR(Reserve(std::max(Longest(finish), Longest(project))));
    if (!finish.empty()) RF_RETURN_IF_ERROR(FinishAll(finish));
    if (!project.empty()) RF_RETURN_IF_ERROR(ProjectAll(project));
    rank_.stream.Then([&rank = rank_, rows = RowsOf(finish) + RowsOf(project)] {
      rank.product_rows.fetch_add(rows, std::memory_order_relaxed);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

 private:
  static int64_t Longest(const std::vector<Piece>& pieces) {
    int64_t rows = 0;
    for (const Piece& piece : pieces) rows = std::max(rows, piece.rows);
    return rows;
  }

  absl::Status Reserve(int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    const auto width = static_cast<size_t>(config_.width);
    RF_RETURN_IF_ERROR(rank_.normed.Reserve(n * width * sizeof(Bf16)).status());
    RF_RETURN_IF_ERROR(rank_.out.Reserve(n * width * sizeof(float)).status());
    RF_RETURN_IF_ERROR(
        rank_.qkv.Reserve(n * static_cast<size_t>(rank_.qkv_width()) * sizeof(float)).status());
    return rank_.gate_up.Reserve(n * 2 * static_cast<size_t>(config_.ffn_width) * sizeof(Bf16))
        .status();
  }

  float* XRows(const Piece& piece) const {
    return reinterpret_cast<float*>(args_.buffers.x) + piece.row * config_.width;
  }

  absl::Status Norm(float* x, const float* add, const float* weight, int64_t rows) {
    return rank_.Check(gpu::RmsNorm({.x = x,
                                     .add = add,
                                     .weight = weight,
                                     .epsilon = config_.norm_epsilon,
                                     .rows = rows,
                                     .n = config_.width,
                                     .row_index = nullptr,
                                     .out_type = Element::kBF16,
                                     .out = rank_.normed.data()},
                                    rank_.stream.get()),
                       "RmsNorm");
  }
  // y = x w^T with contiguous w and y.
  absl::Status Multiply(const Bf16* w, int64_t n, int64_t k, const void* x, int64_t ldx,
                        int64_t rows, Element y_type, void* y) {
    return rank_.Multiply({.w = w,
                           .ldw = k,
                           .x = x,
                           .ldx = ldx,
                           .rows = rows,
                           .n = n,
                           .k = k,
                           .y_type = y_type,
                           .y = y,
                           .ldy = n});
  }

  absl::Status FinishAll(const std::vector<Piece>& pieces) {
    RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(args_.finish));
    RF_RETURN_IF_ERROR(NormalizeAttention());
    RF_ASSIGN_OR_RETURN(std::byte* const mask, rank_.ZeroReport(sizeof(uint64_t)));
    for (const Piece& piece : pieces) RF_RETURN_IF_ERROR(Finish(w, piece, mask));
    if (args_.flags == nullptr) return absl::OkStatus();
    return rank_.CopyOut(mask, sizeof(uint64_t),
                         [flags = args_.flags, stopped = args_.stopped](const std::byte* got) {
                           uint64_t chunks;
                           std::memcpy(&chunks, got, sizeof(chunks));
                           flags->nonfinite_chunks.fetch_or(chunks & ~stopped);
                           return absl::OkStatus();
                         });
  }

  absl::Status NormalizeAttention() {
    const int64_t rows = args_.batch->rows();
    RF_ASSIGN_OR_RETURN(
        std::byte* const attention,
        rank_.attention.Reserve(static_cast<size_t>(rows * config_.q_width()) * sizeof(Bf16)));
    const gpu::SoftmaxArrays state = rank_.States(args_.state, rows);
    return rank_.Check(gpu::NormalizeStates({.max = state.max,
                                             .sum = state.sum,
                                             .acc = state.acc,
                                             .parts = 1,
                                             .part_stride = 0,
                                             .kv_heads = config_.kv_heads,
                                             .group = rank_.group(),
                                             .head_dim = config_.head_dim,
                                             .tokens = rows,
                                             .out_type = Element::kBF16,
                                             .out = attention},
                                            rank_.stream.get()),
                       "NormalizeStates");
  }

  absl::Status Finish(const CudaWeights::Layer& w, const Piece& piece, std::byte* mask) {
    const int64_t width = config_.width, ffn = config_.ffn_width, q_width = config_.q_width();
    float* const x = XRows(piece);
    auto* const out = reinterpret_cast<float*>(rank_.out.data());
    auto* const gate = reinterpret_cast<Bf16*>(rank_.gate_up.data());
    const auto* const attention =
        reinterpret_cast<const Bf16*>(rank_.attention.data()) + piece.row * q_width;
    RF_RETURN_IF_ERROR(
        Multiply(w.o, width, q_width, attention, q_width, piece.rows, Element::kF32, out));
    RF_RETURN_IF_ERROR(Norm(x, out, w.ffn_norm, piece.rows));
    RF_RETURN_IF_ERROR(Multiply(w.gate_up, 2 * ffn, width, rank_.normed.data(), width, piece.rows,
                                Element::kBF16, gate));
    RF_RETURN_IF_ERROR(rank_.Check(gpu::SiluMul({.type = Element::kBF16,
                                                 .gate = gate,
                                                 .up = gate + ffn,
                                                 .out = gate,
                                                 .rows = piece.rows,
                                                 .n = ffn,
                                                 .gate_stride = 2 * ffn,
                                                 .out_stride = 2 * ffn},
                                                rank_.stream.get()),
                                   "SiluMul"));
    RF_RETURN_IF_ERROR(Multiply(w.down, width, ffn, gate, 2 * ffn, piece.rows, Element::kF32, out));
    RF_RETURN_IF_ERROR(
        rank_.Check(gpu::AddFloats(x, out, piece.rows * width, rank_.stream.get()), "AddFloats"));
    return rank_.Check(
        gpu::NoteNonFinite(x, piece.rows, width, rows_.chunk + piece.row,
                           reinterpret_cast<unsigned long long*>(mask), rank_.stream.get()),
        "NoteNonFinite");
  }

  absl::Status ProjectAll(const std::vector<Piece>& pieces) {
    RF_ASSIGN_OR_RETURN(const CudaWeights::Layer w, rank_.weights->ForLayer(args_.project));
    for (const Piece& piece : pieces) RF_RETURN_IF_ERROR(Project(w, piece));
    return absl::OkStatus();
  }

  absl::Status Project(const CudaWeights::Layer& w, const Piece& piece) {
    const int64_t width = config_.width, qkv_width = rank_.qkv_width();
    auto* const qkv = reinterpret_cast<float*>(rank_.qkv.data());
    const int rope_dims = config_.rope.rope_dims;
    RF_RETURN_IF_ERROR(Norm(XRows(piece), nullptr, w.attention_norm, piece.rows));
    RF_RETURN_IF_ERROR(Multiply(w.qkv, qkv_width, width, rank_.normed.data(), width, piece.rows,
                                Element::kF32, qkv));
    return rank_.Check(
        gpu::RotateAndStore(
            {.q = qkv,
             .k = qkv + config_.q_width(),
             .v = qkv + config_.q_width() + config_.kv_width(),
             .q_stride = qkv_width,
             .kv_stride = qkv_width,
             .angles = reinterpret_cast<const float*>(args_.buffers.angles) + piece.row * rope_dims,
             .rows = piece.rows,
             .first_row = piece.row,
             .all_rows = args_.batch->rows(),
             .kv_heads = config_.kv_heads,
             .group = rank_.group(),
             .head_dim = config_.head_dim,
             .rope_dims = rope_dims,
             .type = Element::kBF16,
             .packed_q = args_.buffers.q,
             .targets = rows_.targets + piece.row,
             .pages = rank_.Pages(args_.project),
             .outbox = args_.buffers.outbox},
            rank_.stream.get()),
        "RotateAndStore");
  }

  CudaRank& rank_;
  const ModelConfig& config_;
  const Device::LayersArgs& args_;
  const CudaRank::Rows rows_;
};

}  // namespace

absl::Status QueueEmbedRows(CudaRank& rank, const std::shared_ptr<const RowBatch>& batch,
                            const Device::RowBuffers& buffers) {
  if (batch->rows() == 0) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const CudaRank::Rows rows, rank.UseBatch(batch));
  RF_RETURN_IF_ERROR(
      rank.weights->Embed(rows.token, batch->rows(), reinterpret_cast<float*>(buffers.x)));
  return rank.Check(gpu::RopeAngles(rows.position, batch->rows(),
                                    reinterpret_cast<const double*>(rank.frequency.data()),
                                    rank.config.rope.rope_dims,
                                    reinterpret_cast<float*>(buffers.angles), rank.stream.get()),
                    "RopeAngles");
}

absl::Status QueueLayers(CudaRank& rank, const Device::LayersArgs& args) {
  if (args.batch == nullptr || args.batch->rows() == 0) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const CudaRank::Rows rows, rank.UseBatch(args.batch));
  return LayerRun(rank, args, rows).Run();
}

}  // namespace ringfill
