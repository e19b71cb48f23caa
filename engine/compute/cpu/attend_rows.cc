#include "engine/compute/cpu/attend_rows.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr int64_t kMergeRows = 256;  // of one task

struct RowRange {
  int64_t begin, end;
};

// The rows of [0, rows) that no tile of `tiles` covers.
std::vector<RowRange> RowsBetween(const std::vector<const QueryTile*>& tiles, int64_t rows) {
  std::vector<RowRange> covered;
  for (const QueryTile* tile : tiles) covered.push_back({tile->row, tile->row + tile->tokens});
  std::sort(covered.begin(), covered.end(),
            [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> out;
  int64_t at = 0;
  for (const RowRange& range : covered) {
    if (range.begin > at) out.push_back({at, range.begin});
    at = std::max(at, range.end);
  }
  if (at < rows) out.push_back({at, rows});
  return out;
}

class TileAttention {
 public:
  TileAttention(CpuRank& rank, const Device::AttendArgs& args)
      : rank_(rank), model_(rank.model), args_(args) {}

  // The part of the state buffer that belongs to `rows` tokens from `row` under one KV head.
  SoftmaxRows State(int64_t row, int kv_head) const {
    const ModelConfig& c = model_.config();
    const int64_t first = (kv_head * args_.rows + row) * model_.group();
    const SoftmaxRows all = StateRows(args_.state, args_.rows * c.heads);
    return {all.max + first, all.sum + first, all.acc + first * c.head_dim};
  }

  void Clear(const RowRange& range, int kv_head) const {
    ClearSoftmax(State(range.begin, kv_head),
                 static_cast<int>((range.end - range.begin) * model_.group()),
                 model_.config().head_dim);
  }

  void Run(int thread, const QueryTile& tile, int kv_head) const {
    if (args_.clear) Clear({tile.row, tile.row + tile.tokens}, kv_head);
    const int64_t* visible = args_.batch->visible.data() + tile.row;
    if (visible[tile.tokens - 1] <= tile.begin) return;
    const int head_dim = model_.config().head_dim;
    const int64_t first = (kv_head * args_.rows + tile.row) * model_.group();
    AttentionTile work;
    work.q = args_.q + static_cast<size_t>(first * head_dim) * DTypeBytes(model_.kv_shape().type);
    work.tokens = tile.tokens;
    work.group = model_.group();
    work.kv = Blocks(args_.batch->runs[static_cast<size_t>(tile.run)], kv_head);
    work.visible = visible;
    work.state = State(tile.row, kv_head);
    work.begin = tile.begin;
    model_.attention().Run(work, rank_.thread(thread).attention.data());
    const int64_t rows = int64_t{tile.tokens} * work.group;
    if (!AllFinite(work.state.sum, rows) || !AllFinite(work.state.acc, rows * head_dim)) {
      Note(tile.chunk);
    }
  }

 private:
  KvBlocks Blocks(const KvRun& run, int kv_head) const {
    const KvGeometry& geometry = model_.geometry();
    if (args_.shard == nullptr) {
      const int layer = args_.label.layer;
      return {rank_.pool.base(), run.pages.data(), geometry.PageBytes(),
              geometry.KOffset(layer, kv_head), geometry.VOffset(layer, kv_head)};
    }
    return {args_.shard + run.shard_offset, run.pages.empty() ? nullptr : run.pages.data(),
            geometry.LayerBytes(), geometry.KOffset(0, kv_head), geometry.VOffset(0, kv_head)};
  }

  void Note(int chunk) const {
    if (args_.flags == nullptr) return;
    args_.flags->nonfinite_chunks.fetch_or(uint64_t{1} << chunk);
    int none = -1;
    args_.flags->nonfinite_round.compare_exchange_strong(none, std::max(0, args_.label.round));
  }

  CpuRank& rank_;
  const CpuModel& model_;
  const Device::AttendArgs& args_;
};

}  // namespace

SoftmaxRows StateRows(const std::byte* state, int64_t rows) {
  auto* at = reinterpret_cast<float*>(const_cast<std::byte*>(state));
  return {at, at + rows, at + 2 * rows};
}

void AttendRows(CpuRank& rank, const Device::AttendArgs& args) {
  const AttendBatch& batch = *args.batch;
  const int kv_heads = rank.model.config().kv_heads;
  std::vector<const QueryTile*> tiles;
  int longest = 0;
  SeenKeys seen;
  for (const QueryTile& tile : batch.tiles) {
    if (((args.stopped >> tile.chunk) & 1) != 0 || (args.only_wanted && !tile.wanted)) continue;
    RF_DCHECK(tile.tokens > 0 && tile.row + tile.tokens <= args.rows);
    tiles.push_back(&tile);
    longest = std::max(longest, tile.tokens);
    for (int t = 0; t < tile.tokens; ++t) {
      seen.Add(batch.visible[static_cast<size_t>(tile.row + t)] - tile.begin);
    }
  }
  const TileAttention attention(rank, args);
  if (args.clear) {
    const std::vector<RowRange> rest = RowsBetween(tiles, args.rows);
    rank.team.ParallelFor(static_cast<int64_t>(rest.size()) * kv_heads, [&](int, int64_t i) {
      attention.Clear(rest[static_cast<size_t>(i / kv_heads)], static_cast<int>(i % kv_heads));
    });
  }
  if (tiles.empty()) return;
  rank.ReserveAttention(longest * rank.model.group());
  // Later rows see more keys: starting with them leaves the short tiles to even out the end.
  rank.team.ParallelFor(static_cast<int64_t>(tiles.size()) * kv_heads, [&](int thread, int64_t i) {
    const size_t tile = tiles.size() - 1 - static_cast<size_t>(i / kv_heads);
    attention.Run(thread, *tiles[tile], static_cast<int>(i % kv_heads));
  });
  rank.seen.Add(seen);
}

void MergeStates(CpuRank& rank, const std::byte* from, std::byte* into, int64_t tokens) {
  const ModelConfig& config = rank.model.config();
  const int64_t rows = tokens * config.heads;
  const SoftmaxRows source = StateRows(from, rows), target = StateRows(into, rows);
  rank.team.ParallelFor((rows + kMergeRows - 1) / kMergeRows, [&](int, int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * kMergeRows);
    for (int64_t r = task * kMergeRows; r < end; ++r) {
      const int64_t at = r * config.head_dim;
      MergeSoftmax({source.max + r, source.sum + r, source.acc + at},
                   {target.max + r, target.sum + r, target.acc + at}, config.head_dim);
    }
  });
}

}  // namespace ringfill
