#include "engine/cost/cost_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/cost/sharded_schedule.h"
#include "engine/schedule/documents.h"

namespace ringfill {
namespace {

// Layers worked out one by one; the rest take what the last of these took on average.
constexpr int kWorkedOutLayers = 4;
constexpr int kSlopeLayers = 2;
constexpr int64_t kFloatBytes = 4;

// Simplest first.
constexpr Way kWays[] = {
    {TokenMode::kHome, RingStrategy::kPassKv},       {TokenMode::kHome, RingStrategy::kGatherKv},
    {TokenMode::kHome, RingStrategy::kPassQ},        {TokenMode::kDealt, RingStrategy::kPassKv},
    {TokenMode::kDealt, RingStrategy::kGatherKv},    {TokenMode::kDealt, RingStrategy::kPassQ},
    {TokenMode::kReplicated, RingStrategy::kPassKv},
};

int64_t TokensOf(const PrefillChunk& chunk) {
  int64_t tokens = 0;
  for (const Span& span : chunk.spans) tokens += span.size();
  return tokens;
}

}  // namespace

std::string WayName(Way way) {
  if (way.mode == TokenMode::kReplicated) return "replicated";
  return std::string(way.mode == TokenMode::kHome ? "home " : "dealt ") +
         std::string(RingStrategyName(way.strategy));
}

CostModel::CostModel(const CostOptions& options, Figures figures)
    : options_(options), figures_(std::move(figures)) {
  for (const DeviceFigures& device : figures_.devices) costs_.emplace_back(options_.shape, device);
}

TileShape CostModel::Tiles() const {
  TileShape tiles;
  tiles.page_tokens = options_.shape.page_tokens;
  tiles.product_rows = options_.product_tile_rows;
  tiles.query_tokens = std::max<int64_t>(1, options_.query_tile_rows / options_.shape.group());
  tiles.row_granule = figures_.devices.front().product_row_granule;
  return tiles;
}

bool CostModel::GatherFits(const PrefillChunk& chunk, const Placement& placement) const {
  int64_t pages = 0;
  const int64_t page_tokens = options_.shape.page_tokens;
  for (int r = 0; r < ranks(); ++r) {
    pages += PagesSeen(chunk, placement, r, page_tokens).count;
  }
  return pages * PageLayerBytes(options_.shape) + ranks() * kRoundHeaderBytes <=
         options_.gather_bytes;
}

std::vector<Prediction> CostModel::PredictAll(const PrefillChunk& chunk,
                                              const Placement& placement) const {
  RF_CHECK(placement.ranks() == ranks());
  const bool alone = ranks() == 1;
  const bool gather_fits = GatherFits(chunk, placement);
  const ChunkCounts home = CountChunk(chunk, placement, TokenMode::kHome, Tiles());
  ChunkCounts dealt;
  if (!alone) dealt = CountChunk(chunk, placement, TokenMode::kDealt, Tiles());
  std::vector<Prediction> out;
  for (const Way way : kWays) {
    if (way.mode == TokenMode::kReplicated) {
      // Scores are computed where rows are sharded.
      if (!chunk.score && TokensOf(chunk) <= options_.max_replicated_tokens) {
        out.push_back(Replicated(chunk, placement));
      }
      continue;
    }
    if (alone && (way.mode == TokenMode::kDealt || way.strategy != RingStrategy::kPassKv)) continue;
    if (way.strategy == RingStrategy::kGatherKv && !gather_fits) continue;
    out.push_back(Sharded(chunk, way.mode == TokenMode::kHome ? home : dealt, way));
  }
  return out;
}

Prediction CostModel::Predict(const PrefillChunk& chunk, const Placement& placement,
                              Way way) const {
  RF_CHECK(placement.ranks() == ranks());
  if (way.mode == TokenMode::kReplicated) return Replicated(chunk, placement);
  // The pass falls back in the same way.
  if (way.strategy == RingStrategy::kGatherKv && !GatherFits(chunk, placement)) {
    way.strategy = RingStrategy::kPassKv;
  }
  return Sharded(chunk, CountChunk(chunk, placement, way.mode, Tiles()), way);
}

Prediction CostModel::Sharded(const PrefillChunk& chunk, const ChunkCounts& counts, Way way) const {
  RingTimes times(figures_);
  ShardedSchedule schedule(options_.shape, costs_, counts, way, times);
  schedule.Begin();
  const int full_layers = options_.shape.layers - 1;
  const int worked_out = std::min(full_layers, kWorkedOutLayers);
  double slope_from = 0;
  std::vector<double> busy_from;
  for (int layer = 0; layer < worked_out; ++layer) {
    if (layer == worked_out - kSlopeLayers) {
      slope_from = times.Latest();
      busy_from = times.busy();
    }
    schedule.Attend(false);
    schedule.Products(false);
  }
  int64_t sent = *std::max_element(schedule.sent_bytes().begin(), schedule.sent_bytes().end());
  if (full_layers > worked_out) {
    const double more = full_layers - worked_out;
    times.Skip((times.Latest() - slope_from) / kSlopeLayers * more);
    std::vector<double> busy = times.busy();
    for (size_t r = 0; r < busy.size(); ++r) busy[r] = (busy[r] - busy_from[r]) / kSlopeLayers;
    times.AddBusy(busy, more);
    sent = sent / worked_out * full_layers;
  }
  schedule.Attend(true);
  schedule.Products(true);
  if (chunk.wants_logits) {
    times.Run(counts.rank_of_last, costs_[static_cast<size_t>(counts.rank_of_last)].Embed(1));
    times.AllGather(options_.shape.width * kFloatBytes);
    AddLogits(times);
  }
  if (chunk.score) {
    for (int r = 0; r < ranks(); ++r) {
      const int64_t rows = counts.ranks[static_cast<size_t>(r)].rows;
      if (rows > 0) times.Run(r, costs_[static_cast<size_t>(r)].Score(rows));
    }
  }
  return {way, times.Latest(), times.BusiestRank(), sent};
}

Prediction CostModel::Replicated(const PrefillChunk& chunk, const Placement& placement) const {
  const ModelShape& shape = options_.shape;
  const int64_t tokens = TokensOf(chunk);
  const std::vector<AttendCount> keys =
      CountReplicated(chunk, placement, shape.page_tokens, costs_.front().token_tile());
  RingTimes times(figures_);
  const int n = ranks();
  auto on_all = [&](auto seconds) {
    for (int r = 0; r < n; ++r) times.Run(r, seconds(costs_[static_cast<size_t>(r)], r));
  };
  on_all([&](const OpCost& cost, int) { return cost.Embed(tokens); });
  auto layer = [&] {
    // One header is written, those of the others are checked.
    on_all([&](const OpCost& cost, int) { return cost.TokenQkv(tokens, n) + cost.overhead(); });
    times.AllGather(TokenQkvBytes(shape, tokens, n));
    on_all([&](const OpCost& cost, int r) {
      const AttendCount& count = keys[static_cast<size_t>(r)];
      return (n - 1) * cost.overhead() +
             cost.TokenAttend(tokens, count.token_keys, count.tile_keys);
    });
    times.AllGather(TokenStatesBytes(shape, tokens));
    on_all([&](const OpCost& cost, int) { return cost.TokenOutput(tokens, n); });
    times.AllGather(TokenOutputBytes(shape, tokens, n));
    on_all([&](const OpCost& cost, int) { return cost.TokenFfn(tokens, n); });
    times.AllGather(TokenFfnBytes(shape, tokens));
    on_all([&](const OpCost& cost, int) { return cost.TokenEnd(tokens, n); });
  };
  // All-gathers are barriers, so all layers but the first begin alike.
  layer();
  if (shape.layers > 1) {
    const double first = times.Latest();
    const std::vector<double> busy_first = times.busy();
    layer();
    std::vector<double> busy = times.busy();
    for (size_t r = 0; r < busy.size(); ++r) busy[r] -= busy_first[r];
    times.Skip((times.Latest() - first) * (shape.layers - 2));
    times.AddBusy(busy, shape.layers - 2);
  }
  on_all([&](const OpCost& cost, int) { return cost.Embed(tokens); });
  if (chunk.wants_logits) AddLogits(times);
  const int64_t sent = shape.layers * (n - 1) *
                       (TokenQkvBytes(shape, tokens, n) + TokenStatesBytes(shape, tokens) +
                        TokenOutputBytes(shape, tokens, n) + TokenFfnBytes(shape, tokens));
  return {
      {TokenMode::kReplicated, RingStrategy::kPassKv}, times.Latest(), times.BusiestRank(), sent};
}

void CostModel::AddLogits(RingTimes& times) const {
  const int64_t vocab = options_.shape.vocab;
  const int n = ranks();
  for (int r = 0; r < n; ++r) {
    const int64_t rows = vocab * (r + 1) / n - vocab * r / n;
    times.Run(r, costs_[static_cast<size_t>(r)].Logits(1, rows));
  }
}

}  // namespace ringfill
