#include "engine/compute/cpu/row_layers.h"

#include <cstring>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/cpu/attend_rows.h"

namespace ringfill {
namespace {

// A pass over the tiles of one RunLayers.
class TileRun {
 public:
  TileRun(CpuRank& rank, const Device::LayersArgs& args)
      : rank_(rank), model_(rank.model), config_(rank.model.config()), args_(args) {}

  void Run(int thread, const RowTile& tile) const {
    int64_t halves = 0;
    if (args_.finish >= 0 && (tile.wanted || !args_.only_wanted)) {
      Finish(rank_.thread(thread), tile);
      ++halves;
    }
    if (args_.project >= 0) {
      Project(rank_.thread(thread), tile);
      ++halves;
    }
    rank_.product_rows.fetch_add(halves * tile.rows, std::memory_order_relaxed);
  }

 private:
  float* XRows(const RowTile& tile) const {
    return reinterpret_cast<float*>(args_.buffers.x) + tile.row * config_.width;
  }

  void Finish(CpuThread& thread, const RowTile& tile) const {
    const int group = model_.group();
    const int64_t rows = args_.batch->rows();
    const SoftmaxRows state = StateRows(args_.state, rows * config_.heads);
    // q is free again: its rows hold the float output until they are converted.
    float* out = thread.tile.q();
    for (int64_t i = 0; i < tile.rows; ++i) {
      for (int g = 0; g < config_.kv_heads; ++g) {
        const int64_t first = (g * rows + tile.row + i) * group;
        for (int h = 0; h < group; ++h) {
          NormalizeSoftmax({state.max + first + h, state.sum + first + h,
                            state.acc + (first + h) * config_.head_dim},
                           out + i * config_.q_width() + (g * group + h) * config_.head_dim,
                           config_.head_dim);
        }
      }
    }
    ConvertFloats(out, tile.rows * config_.q_width(), model_.dtype(), thread.tile.attention());
    model_.forward().FinishLayer(args_.finish, XRows(tile), tile.rows, thread.products,
                                 thread.tile);
    NoteNonFinite(tile);
  }

  void NoteNonFinite(const RowTile& tile) const {
    const float* x = XRows(tile);
    if (args_.flags == nullptr || AllFinite(x, tile.rows * config_.width)) return;
    uint64_t chunks = 0;
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (AllFinite(x + i * config_.width, config_.width)) continue;
      chunks |= uint64_t{1} << args_.batch->chunk[static_cast<size_t>(tile.row + i)];
    }
    args_.flags->nonfinite_chunks.fetch_or(chunks & ~args_.stopped);
  }

  void Project(CpuThread& thread, const RowTile& tile) const {
    const int rope_dims = model_.forward().rope().rope_dims();
    const float* angles =
        reinterpret_cast<const float*>(args_.buffers.angles) + tile.row * rope_dims;
    model_.forward().ProjectQkv(args_.project, XRows(tile), angles, tile.rows, thread.products,
                                thread.tile);
    PackQueryRows(thread.tile.q(), tile);
    StorePages(thread.tile, tile);
    FillOutbox(thread.tile, tile);
  }

  void PackQueryRows(const float* q, const RowTile& tile) const {
    const DType type = model_.kv_shape().type;
    const int group = model_.group();
    const int64_t rows = args_.batch->rows();
    for (int64_t i = 0; i < tile.rows; ++i) {
      for (int g = 0; g < config_.kv_heads; ++g) {
        const int64_t at = (g * rows + tile.row + i) * group * config_.head_dim;
        PackQueries(type, config_.head_dim,
                    q + i * config_.q_width() + g * group * config_.head_dim,
                    static_cast<size_t>(group * config_.head_dim),
                    args_.buffers.q + static_cast<size_t>(at) * DTypeBytes(type));
      }
    }
  }

  void StorePages(const TileScratch& tile_scratch, const RowTile& tile) const {
    const KvGeometry& geometry = model_.geometry();
    for (size_t s = tile.first_store; s < tile.last_store; ++s) {
      const KvStore& store = args_.batch->stores[s];
      std::byte* page = rank_.pool.Page(store.page);
      const int64_t row = store.row - tile.row;
      RF_DCHECK(row >= 0 && row + store.rows <= tile.rows);
      for (int g = 0; g < config_.kv_heads; ++g) {
        const int64_t at = row * config_.kv_width() + g * config_.head_dim;
        StoreKv(model_.kv_shape(), store.token_in_page, store.rows, tile_scratch.k() + at,
                tile_scratch.v() + at, config_.kv_width(),
                page + geometry.KOffset(args_.project, g),
                page + geometry.VOffset(args_.project, g));
      }
    }
  }

  void FillOutbox(const TileScratch& tile_scratch, const RowTile& tile) const {
    const DType type = model_.kv_shape().type;
    const int64_t width = config_.kv_width();
    const size_t part = static_cast<size_t>(width) * DTypeBytes(type);
    for (size_t s = tile.first_send; s < tile.last_send; ++s) {
      const KvSend& send = args_.batch->sends[s];
      for (int64_t i = 0; i < send.rows; ++i) {
        const int64_t row = send.row - tile.row + i;
        std::byte* to = args_.buffers.outbox + static_cast<size_t>(send.slot + i) * 2 * part;
        ConvertFloats(tile_scratch.k() + row * width, width, type, to);
        ConvertFloats(tile_scratch.v() + row * width, width, type, to + part);
      }
    }
  }

  CpuRank& rank_;
  const CpuModel& model_;
  const ModelConfig& config_;
  const Device::LayersArgs& args_;
};

absl::Status AcquireLayer(CpuRank& rank, int layer, Duration wait_limit) {
  const Instant deadline = rank.model.clock().Now() + wait_limit;
  Mutex mutex;
  absl::Status first;
  rank.team.ParallelFor(rank.team.size(), [&](int t, int64_t) {
    absl::Status status = rank.model.weights().Acquire(layer, rank.thread(t).products, deadline);
    if (!status.ok()) {
      MutexLock lock(&mutex);
      first.Update(status);
    }
  });
  return first;
}

void Widen(DType type, const std::byte* in, int64_t n, float* out) {
  if (type == DType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const auto* narrow = reinterpret_cast<const Bf16*>(in);
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(narrow[i]);
}

}  // namespace

void EmbedRows(CpuRank& rank, const RowBatch& batch, const Device::RowBuffers& buffers) {
  const WeightMatrix& embedding = rank.model.model().embedding();
  const Rope& rope = rank.model.forward().rope();
  const int64_t width = rank.model.config().width;
  rank.team.ParallelFor(batch.rows(), [&](int, int64_t r) {
    const auto row = static_cast<size_t>(r);
    DequantizeRow(embedding.type, embedding.Row(batch.token[row]), width,
                  reinterpret_cast<float*>(buffers.x) + r * width);
    rope.Angles(batch.position[row],
                reinterpret_cast<float*>(buffers.angles) + r * rope.rope_dims());
  });
}

absl::Status RunLayers(CpuRank& rank, const Device::LayersArgs& args, Duration wait_limit) {
  if (args.project >= 0) RF_RETURN_IF_ERROR(AcquireLayer(rank, args.project, wait_limit));
  if (args.batch != nullptr) {
    const TileRun run(rank, args);
    const std::vector<RowTile>& tiles = args.batch->tiles;
    rank.team.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int thread, int64_t i) {
      const RowTile& tile = tiles[static_cast<size_t>(i)];
      if ((tile.chunks & ~args.stopped) != 0) run.Run(thread, tile);
    });
  }
  if (args.finish >= 0) rank.model.weights().Release(args.finish);
  rank.CountProductScratch();
  return absl::OkStatus();
}

void CopyPages(CpuRank& rank, int layer, const std::vector<PageId>& pages, std::byte* shard) {
  const KvGeometry& geometry = rank.model.geometry();
  const size_t bytes = geometry.LayerBytes();
  rank.team.ParallelFor(static_cast<int64_t>(pages.size()), [&](int, int64_t i) {
    std::memcpy(shard + static_cast<size_t>(i) * bytes,
                rank.pool.Page(pages[static_cast<size_t>(i)]) + geometry.LayerOffset(layer), bytes);
  });
}

void StoreRows(CpuRank& rank, int layer, const std::vector<KvStore>& stores,
               const std::byte* inbox) {
  const ModelConfig& config = rank.model.config();
  const KvBlockShape& shape = rank.model.kv_shape();
  const KvGeometry& geometry = rank.model.geometry();
  const int64_t dim = config.head_dim;
  const size_t element = DTypeBytes(shape.type);
  const size_t part = static_cast<size_t>(config.kv_width()) * element;
  // A head's blocks are one task's alone, since several stores may fill the same page.
  rank.team.ParallelFor(config.kv_heads, [&](int, int64_t head) {
    const auto g = static_cast<int>(head);
    std::vector<float> k(static_cast<size_t>(dim) * static_cast<size_t>(shape.page_tokens));
    std::vector<float> v(k.size());
    for (const KvStore& store : stores) {
      for (int i = 0; i < store.rows; ++i) {
        const std::byte* row = inbox + static_cast<size_t>(store.row + i) * 2 * part +
                               static_cast<size_t>(g * dim) * element;
        Widen(shape.type, row, dim, k.data() + i * dim);
        Widen(shape.type, row + part, dim, v.data() + i * dim);
      }
      std::byte* page = rank.pool.Page(store.page);
      StoreKv(shape, store.token_in_page, store.rows, k.data(), v.data(), dim,
              page + geometry.KOffset(layer, g), page + geometry.VOffset(layer, g));
    }
  });
}

}  // namespace ringfill
