#include "engine/prefill/prefill_pass.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "engine/prefill/score.h"

namespace ringfill {
namespace {

// Rows (tokens times heads of a KV group) of a query tile: large enough for the kernel's register
// tiles, small enough that its scores stay in the second-level cache.
constexpr int kQueryTileRows = 192;
constexpr int kTileRows = 64;

}  // namespace

PrefillPass::PrefillPass(Rank& rank, const StepPlan& plan, const StepControl& control,
                         RankStepResult& result)
    : rank_(rank), ctx_(rank.context), plan_(plan), control_(control), result_(result) {}

void PrefillPass::Prepare() {
  const ModelConfig& c = ctx_.config();
  const int group = ctx_.group();
  layout_ = LayOutRows(plan_, rank_.placement, rank_.index(),
                       {.page_tokens = ctx_.kv_shape.page_tokens,
                        .tile_rows = kTileRows,
                        .query_tokens = std::max(1, kQueryTileRows / group)});
  for (int s = 0; s < rank_.ranks(); ++s) shards_.push_back(MeasureShard(s));
  wanted_.resize(layout_.position.size());
  for (const PrefillChunk& chunk : plan_.chunks) any_wanted_ |= chunk.wants_logits || chunk.score;
  for (size_t r = 0; r < wanted_.size(); ++r) {
    const PrefillChunk& chunk = plan_.chunks[static_cast<size_t>(layout_.chunk[r])];
    wanted_[r] = chunk.score || (chunk.wants_logits && layout_.position[r] == chunk.end - 1);
  }

  const auto rows = static_cast<size_t>(layout_.rows());
  const size_t heads = static_cast<size_t>(c.heads);
  const size_t head_dim = static_cast<size_t>(c.head_dim);
  // x [rows, width]; angles [rows, rope_dims]; q [kv_heads][rows * group][head_dim] in the KV type;
  // state_* [kv_heads][rows * group](, head_dim)
  Rank::Reserve(rank_.x, rows * static_cast<size_t>(c.width) * sizeof(float));
  Rank::Reserve(rank_.angles,
                rows * static_cast<size_t>(ctx_.forward->rope().rope_dims()) * sizeof(float));
  Rank::Reserve(rank_.q, rows * heads * head_dim * DTypeBytes(ctx_.kv_shape.type));
  Rank::Reserve(rank_.state_max, rows * heads * sizeof(float));
  Rank::Reserve(rank_.state_sum, rows * heads * sizeof(float));
  Rank::Reserve(rank_.state_acc, rows * heads * head_dim * sizeof(float));
  if (rank_.ranks() > 1) {
    size_t largest = 0;
    for (const Shard& shard : shards_) largest = std::max(largest, shard.bytes);
    for (AlignedBuffer& buffer : rank_.ring) {
      Rank::Reserve(buffer, sizeof(RoundHeader) + largest);
    }
  }
  for (auto& scratch : rank_.scratch) {
    Rank::Reserve(scratch->attention,
                  ctx_.attention->ScratchBytes(std::max(kQueryTileRows, group)));
  }
}

PrefillPass::Shard PrefillPass::MeasureShard(int source) const {
  Shard shard;
  const int64_t page_tokens = ctx_.kv_shape.page_tokens;
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    const int64_t tokens = rank_.placement.TokensBefore(source, plan_.chunks[c].end);
    shard.chunk_offset.push_back(shard.bytes);
    shard.chunk_pages.push_back((tokens + page_tokens - 1) / page_tokens);
    shard.bytes += static_cast<size_t>(shard.chunk_pages.back()) * ctx_.geometry.LayerBytes();
  }
  return shard;
}

absl::Status PrefillPass::Run() {
  const Instant start = ctx_.clock->Now();
  Prepare();
  const ModelConfig& c = ctx_.config();
  const int layers = c.layers;
  auto finish_clock = [&] {
    const double total = Seconds(ctx_.clock->Now() - start);
    result_.prefill_wait_s += wait_s_;
    result_.prefill_busy_s += std::max(0.0, total - wait_s_);
    result_.stopped_mask = stopped_;
  };

  rank_.team.ParallelFor(layout_.rows(), [&](int, int64_t r) {
    const PrefillChunk& chunk =
        plan_.chunks[static_cast<size_t>(layout_.chunk[static_cast<size_t>(r)])];
    const int64_t position = layout_.position[static_cast<size_t>(r)];
    const TokenId token = chunk.tokens[static_cast<size_t>(position - chunk.begin)];
    const WeightMatrix& embedding = ctx_.model->embedding();
    DequantizeRow(embedding.type, embedding.Row(token), c.width, rank_.x.as<float>() + r * c.width);
    const Rope& rope = ctx_.forward->rope();
    rope.Angles(position, rank_.angles.as<float>() + r * rope.rope_dims());
  });
  RF_RETURN_IF_ERROR(AcquireLayer(0));
  rank_.team.ParallelFor(static_cast<int64_t>(layout_.tiles.size()), [&](int t, int64_t i) {
    Project(0, t, layout_.tiles[static_cast<size_t>(i)]);
  });
  for (int layer = 0; layer < layers; ++layer) {
    RF_RETURN_IF_ERROR(RingAttention(layer));
    stopped_ |= stop_next_;
    const bool last = layer + 1 == layers;
    if (AllStopped()) {
      ctx_.weights->Release(layer);
      break;
    }
    if (!last) RF_RETURN_IF_ERROR(AcquireLayer(layer + 1));
    rank_.team.ParallelFor(static_cast<int64_t>(layout_.tiles.size()), [&](int t, int64_t i) {
      const RowTile& tile = layout_.tiles[static_cast<size_t>(i)];
      if (TileStopped(tile)) return;
      if (NeededIn(layer, tile.row, tile.rows)) Finish(layer, t, tile);
      if (!last) Project(layer + 1, t, tile);
    });
    ctx_.weights->Release(layer);
    if (rank_.index() == 0 && control_.on_layer) control_.on_layer(layer + 1);
  }
  if (!AllStopped()) {
    ScoreChunks(rank_, plan_, layout_, stopped_, result_);
  }
  finish_clock();
  return absl::OkStatus();
}

absl::Status PrefillPass::AcquireLayer(int layer) {
  const Instant deadline = ctx_.clock->Now() + rank_.peer_timeout;
  Mutex mutex;
  absl::Status first;
  rank_.team.ParallelFor(rank_.team.size(), [&](int t, int64_t) {
    absl::Status status =
        ctx_.weights->Acquire(layer, rank_.scratch[static_cast<size_t>(t)]->products, deadline);
    if (!status.ok()) {
      MutexLock lock(&mutex);
      first.Update(status);
    }
  });
  return first;
}

void PrefillPass::Project(int layer, int thread, const RowTile& tile) {
  const ModelConfig& c = ctx_.config();
  ThreadScratch& scratch = *rank_.scratch[static_cast<size_t>(thread)];
  const int rope_dims = ctx_.forward->rope().rope_dims();
  ctx_.forward->ProjectQkv(layer, rank_.x.as<float>() + tile.row * c.width,
                           rank_.angles.as<float>() + tile.row * rope_dims, tile.rows,
                           scratch.products, scratch.tile);
  const int group = ctx_.group();
  const int64_t rows = layout_.rows();
  const size_t element = DTypeBytes(ctx_.kv_shape.type);
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int g = 0; g < c.kv_heads; ++g) {
      const int64_t at = ((g * rows + tile.row + i) * group) * c.head_dim;
      PackQueries(ctx_.kv_shape.type, c.head_dim,
                  scratch.tile.q() + i * c.q_width() + g * group * c.head_dim,
                  static_cast<size_t>(group * c.head_dim),
                  rank_.q.data() + static_cast<size_t>(at) * element);
    }
  }
  for (size_t s = tile.first_segment; s < tile.last_segment; ++s) {
    const PageSegment& segment = layout_.segments[s];
    const auto& pages =
        plan_.chunks[static_cast<size_t>(segment.chunk)].pages[static_cast<size_t>(rank_.index())];
    std::byte* page = rank_.pool.Page(pages[static_cast<size_t>(segment.local_page)]);
    const int64_t row = segment.row - tile.row;
    for (int g = 0; g < c.kv_heads; ++g) {
      const int64_t at = row * c.kv_width() + g * c.head_dim;
      StoreKv(ctx_.kv_shape, segment.token_in_page, segment.rows, scratch.tile.k() + at,
              scratch.tile.v() + at, c.kv_width(), page + ctx_.geometry.KOffset(layer, g),
              page + ctx_.geometry.VOffset(layer, g));
    }
  }
}

void PrefillPass::Finish(int layer, int thread, const RowTile& tile) {
  const ModelConfig& c = ctx_.config();
  ThreadScratch& scratch = *rank_.scratch[static_cast<size_t>(thread)];
  const int group = ctx_.group();
  const SoftmaxRows state{rank_.state_max.as<float>(), rank_.state_sum.as<float>(),
                          rank_.state_acc.as<float>()};
  const DType dtype = ctx_.forward->dtype();
  // q is free again: its rows hold the float output until they are converted.
  float* out = scratch.tile.q();
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int g = 0; g < c.kv_heads; ++g) {
      const int64_t first = (g * layout_.rows() + tile.row + i) * group;
      for (int h = 0; h < group; ++h) {
        NormalizeSoftmax(
            {state.max + first + h, state.sum + first + h, state.acc + (first + h) * c.head_dim},
            out + i * c.q_width() + (g * group + h) * c.head_dim, c.head_dim);
      }
    }
  }
  ConvertFloats(out, tile.rows * c.q_width(), dtype, scratch.tile.attention());
  ctx_.forward->FinishLayer(layer, rank_.x.as<float>() + tile.row * c.width, tile.rows,
                            scratch.products, scratch.tile);
}

RoundHeader PrefillPass::MakeHeader(int layer, int round, int source) const {
  RoundHeader header;
  header.epoch = plan_.epoch;
  header.step = plan_.step;
  header.layer = static_cast<uint32_t>(layer);
  header.round = static_cast<uint32_t>(round);
  header.source = static_cast<uint32_t>(source);
  header.bytes = shards_[static_cast<size_t>(source)].bytes;
  return header;
}

absl::Status PrefillPass::RingAttention(int layer) {
  const int n = rank_.ranks();
  const int me = rank_.index();
  const bool last = layer + 1 == ctx_.config().layers;
  if (last && !any_wanted_) return absl::OkStatus();
  stop_next_ = AskWhatToStop();
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  int at_hand = 0;  // which ring buffer holds the shard that goes on to the next rank
  uint64_t ticket = 0;
  auto start_exchange = [&](int round) {
    // In round k we hold the shard of rank me - k and receive that of me - k - 1.
    const auto held = static_cast<size_t>((me - round + n) % n);
    const auto coming = static_cast<size_t>((me - round - 1 + 2 * n) % n);
    const size_t send_bytes = sizeof(RoundHeader) + shards_[held].bytes;
    result_.ring_bytes += static_cast<int64_t>(send_bytes);
    ticket = rank_.comm->StartExchange(
        {.to = next,
         .from = previous,
         .send = {rank_.ring[at_hand].data(), send_bytes},
         .recv = {rank_.ring[1 - at_hand].data(), sizeof(RoundHeader) + shards_[coming].bytes},
         .deadline = ctx_.clock->Now() + rank_.peer_timeout});
  };
  if (n > 1) {
    GatherOwnShard(layer, rank_.ring[0].data());
    start_exchange(0);
  }
  Attend(layer, me, nullptr);
  for (int round = 1; round < n; ++round) {
    const Instant before = ctx_.clock->Now();
    Communicator::ExchangeResult exchanged = rank_.comm->Wait(ticket);
    wait_s_ += Seconds(ctx_.clock->Now() - before);
    RF_RETURN_IF_ERROR(exchanged.status);
    result_.round_seconds.push_back(Seconds(exchanged.transfer_time));
    at_hand = 1 - at_hand;
    const int source = (me - round + n) % n;
    RoundHeader header;
    std::memcpy(&header, rank_.ring[at_hand].data(), sizeof(header));
    RF_RETURN_IF_ERROR(CheckRoundHeader(MakeHeader(layer, round - 1, source), header));
    stop_next_ |= header.stop_mask;
    if (round + 1 < n) {
      header.round = static_cast<uint32_t>(round);
      std::memcpy(rank_.ring[at_hand].data(), &header, sizeof(header));
      start_exchange(round);
    }
    Attend(layer, source, rank_.ring[at_hand].data() + sizeof(RoundHeader));
  }
  return absl::OkStatus();
}

void PrefillPass::GatherOwnShard(int layer, std::byte* buffer) {
  const auto me = static_cast<size_t>(rank_.index());
  RoundHeader header = MakeHeader(layer, 0, rank_.index());
  header.stop_mask = stop_next_;
  std::memcpy(buffer, &header, sizeof(header));
  const size_t layer_bytes = ctx_.geometry.LayerBytes();
  const size_t layer_offset = ctx_.geometry.LayerOffset(layer);
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    std::byte* to = buffer + sizeof(header) + shards_[me].chunk_offset[c];
    const auto& pages = plan_.chunks[c].pages[me];
    rank_.team.ParallelFor(shards_[me].chunk_pages[c], [&](int, int64_t i) {
      const std::byte* page = rank_.pool.Page(pages[static_cast<size_t>(i)]);
      std::memcpy(to + static_cast<size_t>(i) * layer_bytes, page + layer_offset, layer_bytes);
    });
  }
}

void PrefillPass::Attend(int layer, int source, const std::byte* received) {
  // Later rows see more keys: starting with them leaves the short tiles to even out the end.
  const int kv_heads = ctx_.config().kv_heads;
  const auto tiles = static_cast<int64_t>(layout_.queries.size());
  rank_.team.ParallelFor(tiles * kv_heads, [&](int thread, int64_t i) {
    const QueryTile& tile = layout_.queries[static_cast<size_t>(tiles - 1 - i / kv_heads)];
    if (ChunkStopped(tile.chunk) || !NeededIn(layer, tile.row, tile.tokens)) return;
    AttendTile(layer, thread, source, received, tile, static_cast<int>(i % kv_heads));
  });
}

void PrefillPass::AttendTile(int layer, int thread, int source, const std::byte* received,
                             const QueryTile& tile, int kv_head) {
  const int64_t* visible = layout_.visible[static_cast<size_t>(source)].data() + tile.row;
  const ModelConfig& c = ctx_.config();
  const int group = ctx_.group();
  const auto chunk = static_cast<size_t>(tile.chunk);
  const int64_t first = (kv_head * layout_.rows() + tile.row) * group;
  const SoftmaxRows state{rank_.state_max.as<float>() + first, rank_.state_sum.as<float>() + first,
                          rank_.state_acc.as<float>() + first * c.head_dim};
  // The rank's own shard comes first.
  if (received == nullptr) ClearSoftmax(state, tile.tokens * group, c.head_dim);
  if (visible[tile.tokens - 1] == 0) return;
  AttentionTile work;
  work.q =
      rank_.q.data() + static_cast<size_t>(first * c.head_dim) * DTypeBytes(ctx_.kv_shape.type);
  work.tokens = tile.tokens;
  work.group = group;
  if (received == nullptr) {
    work.kv = {rank_.pool.base(), plan_.chunks[chunk].pages[static_cast<size_t>(source)].data(),
               ctx_.geometry.PageBytes(), ctx_.geometry.KOffset(layer, kv_head),
               ctx_.geometry.VOffset(layer, kv_head)};
  } else {
    work.kv = {received + shards_[static_cast<size_t>(source)].chunk_offset[chunk], nullptr,
               ctx_.geometry.LayerBytes(), ctx_.geometry.KOffset(0, kv_head),
               ctx_.geometry.VOffset(0, kv_head)};
  }
  work.visible = visible;
  work.state = state;
  ctx_.attention->Run(work, rank_.scratch[static_cast<size_t>(thread)]->attention.data());
}

bool PrefillPass::LastLayerNeeds(int64_t row, int64_t rows) const {
  for (int64_t r = row; r < row + rows; ++r) {
    if (wanted_[static_cast<size_t>(r)]) return true;
  }
  return false;
}

bool PrefillPass::NeededIn(int layer, int64_t row, int64_t rows) const {
  return layer + 1 < ctx_.config().layers || LastLayerNeeds(row, rows);
}

bool PrefillPass::TileStopped(const RowTile& tile) const {
  for (size_t s = tile.first_segment; s < tile.last_segment; ++s) {
    if (!ChunkStopped(layout_.segments[s].chunk)) return false;
  }
  return true;
}

bool PrefillPass::AllStopped() const {
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    if (!ChunkStopped(static_cast<int>(c))) return false;
  }
  return true;
}

uint64_t PrefillPass::AskWhatToStop() const {
  uint64_t mask = 0;
  if (!control_.should_stop) return mask;
  for (size_t c = 0; c < plan_.chunks.size(); ++c) {
    if (control_.should_stop(static_cast<int>(c))) mask |= uint64_t{1} << c;
  }
  return mask;
}

std::vector<float> PrefillPass::last_hidden() const {
  const ModelConfig& c = ctx_.config();
  std::vector<float> out;
  for (size_t e = 0; e < plan_.chunks.size(); ++e) {
    const PrefillChunk& chunk = plan_.chunks[e];
    if (!chunk.wants_logits || ChunkStopped(static_cast<int>(e))) continue;
    const size_t at = out.size();
    out.resize(at + static_cast<size_t>(c.width));
    if (rank_.placement.Home(chunk.end - 1) != rank_.index()) continue;
    // The chunk's last position is its last row on its home.
    int64_t row = layout_.rows() - 1;
    while (layout_.chunk[static_cast<size_t>(row)] != static_cast<int>(e)) --row;
    RmsNorm(rank_.x.as<float>() + row * c.width, ctx_.model->output_norm().data(), c.norm_epsilon,
            1, c.width, DType::kF32, out.data() + at);
  }
  return out;
}

}  // namespace ringfill
