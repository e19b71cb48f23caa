#include "engine/prefill/prefill_pass.h"

#include <algorithm>

namespace ringfill {
namespace {

// Rows (tokens times heads of a KV group) of a query tile: large enough for a kernel's register
// tiles, small enough that its scores stay in the second-level cache.
constexpr int kQueryTileRows = 192;
constexpr int kTileRows = 64;
// How many layers the host may be ahead of the device.
constexpr int kRunAhead = 2;

RowLayoutOptions LayoutOptions(Rank& rank) {
  const int group = rank.model().heads / rank.model().kv_heads;
  return {.page_tokens = rank.geometry().page_tokens,
          .tile_rows = kTileRows,
          .query_tokens = std::max(1, kQueryTileRows / group),
          .head_slots = HeaderSlots(rank.device())};
}

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

PrefillPass::PrefillPass(Rank& rank, const StepPlan& plan, const StepControl& control,
                         StepTransfers& transfers, RankStepResult& result)
    : rank_(rank),
      device_(rank.device()),
      plan_(plan),
      control_(control),
      transfers_(transfers),
      result_(result),
      layout_(plan, rank.placements(), LayoutOptions(rank)),
      context_{rank, plan, layout_, transfers} {}

absl::Status PrefillPass::Prepare() {
  batch_ = std::make_shared<const RowBatch>(layout_.MakeBatch(rank_.index()));
  const int64_t rows = batch_->rows();
  buffers_.x = rank_.Reserve("activations", 0, Index(rows * rank_.model().width) * sizeof(float));
  buffers_.angles = rank_.Reserve("angles", 0, device_.AngleBytes(rows));
  std::byte* const queries =
      rank_.Reserve("queries", 0, sizeof(RoundHeader) + device_.QueryBytes(rows));
  buffers_.q = queries == nullptr ? nullptr : queries + sizeof(RoundHeader);
  if (batch_->send_slots > 0) {
    buffers_.outbox =
        rank_.Reserve("kv outbox", 0, Index(batch_->send_slots) * device_.KvRowBytes());
  }
  context_.q = buffers_.q;
  context_.state = rank_.Reserve("states", 0, device_.StateBytes(rows));
  homing_ = std::make_unique<KvHoming>(context_, buffers_.outbox);
  for (int s = 0; s < kRingStrategies; ++s) {
    std::vector<int> chunks;
    for (const int chunk : layout_.sharded()) {
      if (static_cast<int>(plan_.chunks[Index(chunk)].strategy) == s) chunks.push_back(chunk);
    }
    if (chunks.empty()) continue;
    strategies_.push_back(MakeStrategy(static_cast<RingStrategy>(s), context_, chunks));
  }
  for (const int chunk : layout_.sharded()) {
    any_wanted_ |= plan_.chunks[Index(chunk)].wants_logits || plan_.chunks[Index(chunk)].score;
  }
  for (int layer = 0; layer < rank_.model().layers; ++layer) {
    flags_.push_back(std::make_shared<LayerFlags>());
  }
  return rank_.reserved();
}

absl::Status PrefillPass::Run() {
  RF_RETURN_IF_ERROR(Prepare());
  const int layers = rank_.model().layers;
  device_.EmbedRows(batch_, buffers_);
  for (int layer = 0; layer <= layers; ++layer) {
    if (layer >= kRunAhead) RF_RETURN_IF_ERROR(AwaitAttention(layer - kRunAhead));
    if (AllStopped()) {
      device_.AbandonLayers(layer - 1);
      break;
    }
    RunLayers(layer - 1, layer < layers ? layer : -1);
    if (layer < layers) QueueAttention(layer);
  }
  QueueHidden();
  QueueScores();
  const absl::Status status = rank_.stream().Synchronize(rank_.Deadline());
  transfers_.Collect();
  CollectFaults();
  RF_RETURN_IF_ERROR(status);
  if (!AllStopped()) ReportProgress(layers);
  for (size_t i = 0; i < last_rows_.size(); ++i) {
    std::copy(last_rows_[i].begin(), last_rows_[i].end(),
              hidden_.begin() + static_cast<ptrdiff_t>(last_row_at_[i] * last_rows_[i].size()));
  }
  CollectScores();
  result_.stopped_mask = stopped_;
  return absl::OkStatus();
}

absl::Status PrefillPass::AwaitAttention(int layer) {
  RF_RETURN_IF_ERROR(attended_[Index(layer)]->Await(rank_.Deadline()));
  transfers_.Collect();
  stopped_ |= flags_[Index(layer)]->stop_mask.load(std::memory_order_relaxed);
  // Its second half runs with the first half of the next.
  ReportProgress(layer);
  return absl::OkStatus();
}

void PrefillPass::RunLayers(int finish, int project) {
  Device::LayersArgs args;
  args.finish = finish;
  args.project = project;
  args.only_wanted = project < 0;
  args.stopped = stopped_;
  args.batch = batch_;
  args.buffers = buffers_;
  args.state = context_.state;
  args.flags = flags_[Index(std::max(finish, 0))];
  device_.RunLayers(args);
}

void PrefillPass::QueueAttention(int layer) {
  AttentionLayer args;
  args.layer = layer;
  args.stop_mask = AskWhatToStop();
  args.stopped = stopped_;
  args.only_wanted = layer + 1 == rank_.model().layers;
  args.flags = flags_[Index(layer)];
  args.flags->stop_mask.fetch_or(args.stop_mask, std::memory_order_relaxed);
  homing_->Start(args);
  if (!args.only_wanted || any_wanted_) {
    for (const StrategyPtr& strategy : strategies_) strategy->Start(args);
    homing_->Finish(args);
    for (size_t s = 0; s < strategies_.size(); ++s) {
      args.clear = s == 0;
      strategies_[s]->Attend(args);
    }
  } else {
    homing_->Finish(args);
  }
  attended_.push_back(transfers_.Record());
}

void PrefillPass::QueueHidden() {
  const RankRows& rows = layout_.rows(rank_.index());
  const auto width = Index(rank_.model().width);
  for (const int chunk : layout_.sharded()) {
    if (!plan_.chunks[Index(chunk)].wants_logits || Stopped(chunk)) continue;
    hidden_ranks_.push_back(layout_.RankOfLast(chunk));
    if (hidden_ranks_.back() != rank_.index()) continue;
    // The chunk's last position is its last row.
    int64_t row = rows.rows() - 1;
    while (rows.chunk[Index(row)] != chunk) --row;
    last_row_at_.push_back(hidden_ranks_.size() - 1);
    last_rows_.emplace_back(width);
    device_.HiddenRows(buffers_.x, {row}, last_rows_.back().data());
  }
  hidden_.resize(hidden_ranks_.size() * width);
}

void PrefillPass::QueueScores() {
  const RankRows& rows = layout_.rows(rank_.index());
  std::vector<Device::ScoreRow> wanted;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int chunk = rows.chunk[Index(row)];
    const PrefillChunk& c = plan_.chunks[Index(chunk)];
    const auto index = Index(rows.index[Index(row)]);
    if (!c.score || Stopped(chunk) || index >= c.targets.size()) continue;
    wanted.push_back({row, c.targets[index]});
    scored_rows_.push_back(row);
  }
  if (wanted.empty()) return;
  scores_.resize(wanted.size());
  device_.ScoreRows(buffers_.x, std::move(wanted), scores_.data());
}

void PrefillPass::CollectScores() {
  const RankRows& rows = layout_.rows(rank_.index());
  for (size_t i = 0; i < scored_rows_.size(); ++i) {
    const auto row = Index(scored_rows_[i]);
    result_.scores.push_back({rows.chunk[row], rows.position[row], scores_[i]});
  }
}

void PrefillPass::CollectFaults() {
  uint64_t seen = 0;
  for (size_t layer = 0; layer < flags_.size(); ++layer) {
    const uint64_t mask = flags_[layer]->nonfinite_chunks.load(std::memory_order_relaxed);
    const int round = flags_[layer]->nonfinite_round.load(std::memory_order_relaxed);
    for (const int chunk : layout_.sharded()) {
      if (((mask & ~seen) >> chunk) & 1) {
        result_.faults.push_back({chunk, static_cast<int>(layer), round});
      }
    }
    seen |= mask;
  }
}

void PrefillPass::ReportProgress(int layers_done) {
  if (rank_.index() != 0 || !control_.on_layer) return;
  while (reported_ < layers_done) control_.on_layer(++reported_);
}

bool PrefillPass::AllStopped() const {
  return std::all_of(layout_.sharded().begin(), layout_.sharded().end(),
                     [this](int chunk) { return Stopped(chunk); });
}

uint64_t PrefillPass::AskWhatToStop() const {
  uint64_t mask = 0;
  if (!control_.should_stop) return mask;
  for (const int chunk : layout_.sharded()) {
    if (control_.should_stop(chunk)) mask |= uint64_t{1} << chunk;
  }
  return mask;
}

}  // namespace ringfill
