#include "engine/compute/cpu/token_pass.h"

#include <algorithm>
#include <cstring>

#include "engine/compute/cpu/attend_rows.h"
#include "engine/compute/products/vector_product.h"

namespace ringfill {
namespace {

constexpr char kScratch[] = "token scratch";
// Rows of a weight matrix that one task multiplies.
constexpr int64_t kTaskRows = 64;
// A part of a tile's KV that one attention task reads, at least.
constexpr int64_t kMinSplitPages = 8;
// Rows (tokens times heads of a KV group) of an attention tile.
constexpr int64_t kTileRows = 192;
// The room for a RoundHeader before a part of kQkv.
constexpr int64_t kHeaderFloats = sizeof(RoundHeader) / sizeof(float);

}  // namespace

TokenPass::TokenPass(CpuRank& rank)
    : rank_(rank),
      model_(rank.model),
      config_(rank.model.config()),
      x_(rank.ledger, kScratch),
      normed_(rank.ledger, kScratch),
      angles_(rank.ledger, kScratch),
      qkv_(rank.ledger, kScratch),
      q_(rank.ledger, kScratch),
      attention_(rank.ledger, kScratch),
      gate_(rank.ledger, kScratch),
      up_(rank.ledger, kScratch),
      parts_(rank.ledger, kScratch) {}

size_t TokenPass::StageBytes(const ModelConfig& config, Device::TokenStage stage, int64_t tokens,
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
  const int64_t head = stage == Device::TokenStage::kQkv ? kHeaderFloats : 0;
  return static_cast<size_t>(head + tokens * floats) * sizeof(float);
}

void TokenPass::Begin(std::shared_ptr<const Batch> batch) {
  batch_ = std::move(batch);
  const Rope& rope = model_.forward().rope();
  const auto floats = [&](LedgerBuffer& buffer, int64_t a_token) {
    buffer.Reserve(static_cast<size_t>(tokens() * a_token) * sizeof(float));
  };
  floats(x_, config_.width);
  floats(normed_, config_.width);
  floats(angles_, rope.rope_dims());
  floats(qkv_, qkv_width());
  floats(q_, config_.q_width());
  floats(attention_, config_.q_width());
  floats(gate_, config_.ffn_width);
  floats(up_, config_.ffn_width);
  const WeightMatrix& embedding = model_.model().embedding();
  rank_.team.ParallelFor(tokens(), [&](int, int64_t t) {
    const auto token = static_cast<size_t>(t);
    DequantizeRow(embedding.type, embedding.Row(batch_->token[token]), config_.width,
                  x_.as<float>() + t * config_.width);
    rope.Angles(batch_->position[token], angles_.as<float>() + t * rope.rope_dims());
  });
  MakeTiles();
  MakeTasks();
}

void TokenPass::Stop(std::shared_ptr<const Batch> rest) {
  batch_ = std::move(rest);
  MakeTiles();
  MakeTasks();
}

void TokenPass::NoteFaults(int layer, Device::TokenStage stage, const float* parts, int64_t floats,
                           int64_t stride) const {
  if (batch_->faults == nullptr) return;
  for (int64_t t = 0; t < tokens(); ++t) {
    Device::TokenFault& fault = (*batch_->faults)[static_cast<size_t>(t)];
    if (fault.layer < 0 && !AllFinite(parts + t * stride, floats)) fault = {layer, stage};
  }
}

// Maxima may be -inf; where one is not finite otherwise, neither is the sum.
void TokenPass::NoteStateFaults(int layer, const float* states) const {
  if (batch_->faults == nullptr) return;
  const int64_t rows = tokens() * config_.heads;
  const int group = model_.group();
  for (int64_t t = 0; t < tokens(); ++t) {
    Device::TokenFault& fault = (*batch_->faults)[static_cast<size_t>(t)];
    for (int g = 0; g < config_.kv_heads && fault.layer < 0; ++g) {
      const int64_t row = (g * tokens() + t) * group;
      const float* acc = states + 2 * rows + row * config_.head_dim;
      if (!AllFinite(states + rows + row, group) ||
          !AllFinite(acc, int64_t{group} * config_.head_dim)) {
        fault = {layer, Device::TokenStage::kStates};
      }
    }
  }
}

void TokenPass::MakeTiles() {
  tiles_.clear();
  const int64_t cap = std::max<int64_t>(1, kTileRows / model_.group());
  for (int64_t t = 0; t < tokens(); ++t) {
    const auto i = static_cast<size_t>(t);
    const bool joins = !tiles_.empty() && tiles_.back().tokens < cap &&
                       batch_->run[i] == batch_->run[i - 1] &&
                       batch_->BeginOf(i) == batch_->BeginOf(i - 1) &&
                       batch_->visible[i] >= batch_->visible[i - 1];
    if (joins) {
      ++tiles_.back().tokens;
    } else {
      tiles_.push_back({t, 1});
    }
  }
}

void TokenPass::MakeTasks() {
  tasks_.clear();
  part_rows_ = 0;
  const int64_t page_tokens = model_.kv_shape().page_tokens;
  const auto streams = static_cast<int64_t>(tiles_.size()) * config_.kv_heads;
  const int64_t wanted =
      std::max<int64_t>(1, 2 * rank_.team.size() / std::max<int64_t>(1, streams));
  int longest = 1;
  for (const Tile& tile : tiles_) {
    longest = std::max(longest, tile.tokens);
    const int64_t visible = batch_->visible[static_cast<size_t>(tile.token + tile.tokens - 1)];
    const int64_t first_page = batch_->BeginOf(static_cast<size_t>(tile.token)) / page_tokens;
    const int64_t pages = (visible + page_tokens - 1) / page_tokens - first_page;
    const int64_t splits = std::clamp<int64_t>(pages / kMinSplitPages, 1, wanted);
    const int64_t each = (pages + splits - 1) / splits;
    for (int g = 0; g < config_.kv_heads; ++g) {
      for (int64_t page = 0; page < pages; page += each) {
        const bool alone = each >= pages;
        tasks_.push_back(
            {tile, g, first_page + page, std::min(each, pages - page), alone, part_rows_});
        if (!alone) part_rows_ += int64_t{tile.tokens} * model_.group();
      }
    }
  }
  parts_.Reserve(static_cast<size_t>(part_rows_ * (2 + config_.head_dim)) * sizeof(float));
  rank_.ReserveAttention(longest * model_.group());
}

void TokenPass::Multiply(const WeightMatrix& w, Slice rows, Slice cols, const float* x,
                         int64_t x_stride, float* y, int64_t y_stride) {
  const int64_t tasks = (rows.size() + kTaskRows - 1) / kTaskRows;
  for (int64_t first = 0; first < tokens(); first += kMaxVectorBatch) {
    const auto batch = static_cast<int>(std::min<int64_t>(kMaxVectorBatch, tokens() - first));
    rank_.team.ParallelFor(tasks, [&](int, int64_t i) {
      const int64_t begin = rows.begin + i * kTaskRows;
      VectorProduct({.w = &w,
                     .row_begin = begin,
                     .row_end = std::min(begin + kTaskRows, rows.end),
                     .col_begin = cols.begin,
                     .col_end = cols.end,
                     .x = x + first * x_stride,
                     .x_stride = static_cast<ptrdiff_t>(x_stride),
                     .y = y + first * y_stride,
                     .y_stride = static_cast<ptrdiff_t>(y_stride),
                     .batch = batch},
                    model_.isa());
    });
  }
}

void TokenPass::Norm(const std::vector<float>& weight) {
  rank_.team.ParallelFor(tokens(), [&](int, int64_t t) {
    const int64_t at = t * config_.width;
    RmsNorm(x_.as<float>() + at, weight.data(), config_.norm_epsilon, 1, config_.width, DType::kF32,
            normed_.as<float>() + at);
  });
}

void TokenPass::Qkv(int layer, float* send) {
  const LayerWeights& w = model_.model().layers()[static_cast<size_t>(layer)];
  Norm(w.attention_norm);
  send += kHeaderFloats;
  // Slices of [q rows, k rows, v rows] laid end to end.
  const int64_t parts[] = {config_.q_width(), config_.kv_width(), config_.kv_width()};
  const WeightMatrix* matrices[] = {&w.q, &w.k, &w.v};
  const Slice mine = SliceOf(qkv_width(), 1, batch_->rank, batch_->ranks);
  const int64_t stride = LargestSlice(qkv_width(), 1, batch_->ranks);
  int64_t first = 0;
  for (int m = 0; m < 3; ++m) {
    const Slice rows{std::clamp<int64_t>(mine.begin - first, 0, parts[m]),
                     std::clamp<int64_t>(mine.end - first, 0, parts[m])};
    if (rows.size() > 0) {
      // y is indexed by the matrix's own rows, so it begins where row 0 would lie.
      Multiply(*matrices[m], rows, {0, config_.width}, normed_.as<float>(), config_.width,
               send + (first - mine.begin), stride);
    }
    first += parts[m];
  }
  NoteFaults(layer, Device::TokenStage::kQkv, send, mine.size(), stride);
}

void TokenPass::Assemble(const float* gathered) {
  const int64_t stride = LargestSlice(qkv_width(), 1, batch_->ranks);
  const int64_t part = kHeaderFloats + tokens() * stride;
  const DType type = model_.kv_shape().type;
  const Rope& rope = model_.forward().rope();
  const int64_t group_width = int64_t{model_.group()} * config_.head_dim;
  rank_.team.ParallelFor(tokens(), [&](int, int64_t t) {
    float* row = qkv_.as<float>() + t * qkv_width();
    for (int r = 0; r < batch_->ranks; ++r) {
      const Slice theirs = SliceOf(qkv_width(), 1, r, batch_->ranks);
      std::copy_n(gathered + r * part + kHeaderFloats + t * stride, theirs.size(),
                  row + theirs.begin);
    }
    const float* angles = angles_.as<float>() + t * rope.rope_dims();
    rope.Apply(angles, config_.heads, row);
    rope.Apply(angles, config_.kv_heads, row + config_.q_width());
    for (int g = 0; g < config_.kv_heads; ++g) {
      const int64_t at = (g * tokens() + t) * group_width;
      PackQueries(type, config_.head_dim, row + g * group_width, static_cast<size_t>(group_width),
                  q_.data() + static_cast<size_t>(at) * DTypeBytes(type));
    }
  });
}

void TokenPass::StoreOwnKv(int layer) {
  const KvGeometry& geometry = model_.geometry();
  for (const KvStore& store : batch_->stores) {
    std::byte* page = rank_.pool.Page(store.page);
    const float* k = qkv_.as<float>() + store.row * qkv_width() + config_.q_width();
    const float* v = k + config_.kv_width();
    for (int g = 0; g < config_.kv_heads; ++g) {
      StoreKv(model_.kv_shape(), store.token_in_page, store.rows, k + g * config_.head_dim,
              v + g * config_.head_dim, qkv_width(), page + geometry.KOffset(layer, g),
              page + geometry.VOffset(layer, g));
    }
  }
}

SoftmaxRows TokenPass::PartOf(const Task& task) const {
  float* all = parts_.as<float>();
  return {all + task.part_row, all + part_rows_ + task.part_row,
          all + 2 * part_rows_ + task.part_row * config_.head_dim};
}

SoftmaxRows TokenPass::RowsOf(const Task& task, float* state) const {
  const int64_t rows = tokens() * config_.heads;
  const int64_t first = (task.kv_head * tokens() + task.tile.token) * model_.group();
  return {state + first, state + rows + first, state + 2 * rows + first * config_.head_dim};
}

void TokenPass::RunTask(int layer, int thread, const Task& task, const SoftmaxRows& state) {
  const int64_t page_tokens = model_.kv_shape().page_tokens;
  const KvGeometry& geometry = model_.geometry();
  const auto token = static_cast<size_t>(task.tile.token);
  const KvRun& run = batch_->runs[static_cast<size_t>(batch_->run[token])];
  std::vector<int64_t> visible(static_cast<size_t>(task.tile.tokens));
  const int64_t first_key = task.first_page * page_tokens;
  for (size_t t = 0; t < visible.size(); ++t) {
    visible[t] =
        std::clamp<int64_t>(batch_->visible[token + t] - first_key, 0, task.pages * page_tokens);
  }
  ClearSoftmax(state, task.tile.tokens * model_.group(), config_.head_dim);
  const int64_t first = (task.kv_head * tokens() + task.tile.token) * model_.group();
  model_.attention().Run(
      {.q = q_.data() +
            static_cast<size_t>(first * config_.head_dim) * DTypeBytes(model_.kv_shape().type),
       .tokens = task.tile.tokens,
       .group = model_.group(),
       .kv = {rank_.pool.base(), run.pages.data() + task.first_page, geometry.PageBytes(),
              geometry.KOffset(layer, task.kv_head), geometry.VOffset(layer, task.kv_head)},
       .visible = visible.data(),
       .state = state,
       .begin = std::max<int64_t>(0, batch_->BeginOf(token) - first_key)},
      rank_.thread(thread).attention.data());
}

void TokenPass::Attend(int layer, const float* gathered, float* send) {
  Assemble(gathered);
  StoreOwnKv(layer);
  const int64_t rows = tokens() * config_.heads;
  ClearSoftmax({send, send + rows, send + 2 * rows}, static_cast<int>(rows), config_.head_dim);
  rank_.team.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int thread, int64_t i) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    RunTask(layer, thread, task, task.alone ? RowsOf(task, send) : PartOf(task));
  });
  for (const Task& task : tasks_) {
    if (task.alone) continue;
    const SoftmaxRows from = PartOf(task), into = RowsOf(task, send);
    for (int i = 0; i < task.tile.tokens * model_.group(); ++i) {
      MergeSoftmax(from.Row(i, config_.head_dim), into.Row(i, config_.head_dim), config_.head_dim);
    }
  }
  NoteStateFaults(layer, send);
  SeenKeys seen;
  for (size_t t = 0; t < batch_->visible.size(); ++t) {
    seen.Add(batch_->visible[t] - batch_->BeginOf(t));
  }
  rank_.seen.Add(seen);
}

void TokenPass::Output(int layer, const float* gathered, float* send) {
  const int dim = config_.head_dim;
  const int group = model_.group();
  const int64_t rows = tokens() * config_.heads;
  rank_.team.ParallelFor(tokens(), [&](int, int64_t t) {
    std::vector<float> acc(static_cast<size_t>(dim));
    for (int h = 0; h < config_.heads; ++h) {
      const int64_t row = (int64_t{h / group} * tokens() + t) * group + h % group;
      float max, sum;
      const SoftmaxRow merged{&max, &sum, acc.data()};
      ClearSoftmax({&max, &sum, acc.data()}, 1, dim);
      for (int r = 0; r < batch_->ranks; ++r) {
        // Only read: MergeSoftmax does not write what it merges from.
        float* part = const_cast<float*>(gathered) + r * rows * (2 + dim);
        MergeSoftmax({part + row, part + rows + row, part + 2 * rows + row * dim}, merged, dim);
      }
      NormalizeSoftmax(merged, attention_.as<float>() + t * config_.q_width() + h * dim, dim);
    }
  });
  const LayerWeights& w = model_.model().layers()[static_cast<size_t>(layer)];
  const Slice mine = SliceOf(config_.width, 1, batch_->rank, batch_->ranks);
  Multiply(w.o, mine, {0, config_.q_width()}, attention_.as<float>(), config_.q_width(),
           send - mine.begin, LargestSlice(config_.width, 1, batch_->ranks));
  NoteFaults(layer, Device::TokenStage::kOutput, send, mine.size(),
             LargestSlice(config_.width, 1, batch_->ranks));
}

void TokenPass::Ffn(int layer, const float* gathered, float* send) {
  const LayerWeights& w = model_.model().layers()[static_cast<size_t>(layer)];
  const int64_t width = config_.width, ffn_width = config_.ffn_width;
  const int64_t stride = LargestSlice(width, 1, batch_->ranks);
  for (int r = 0; r < batch_->ranks; ++r) {
    const Slice theirs = SliceOf(width, 1, r, batch_->ranks);
    for (int64_t t = 0; t < tokens(); ++t) {
      AddInPlace(x_.as<float>() + t * width + theirs.begin, gathered + (r * tokens() + t) * stride,
                 theirs.size());
    }
  }
  Norm(w.ffn_norm);
  // gate, up: the hidden dimension sliced on the quantisation blocks of down, whose columns it is.
  const int64_t block = GetWeightTypeInfo(w.down.type).block_weights;
  const Slice hidden = SliceOf(ffn_width, block, batch_->rank, batch_->ranks);
  Multiply(w.gate, hidden, {0, width}, normed_.as<float>(), width, gate_.as<float>(), ffn_width);
  Multiply(w.up, hidden, {0, width}, normed_.as<float>(), width, up_.as<float>(), ffn_width);
  rank_.team.ParallelFor(tokens(), [&](int, int64_t t) {
    float* gate = gate_.as<float>() + t * ffn_width + hidden.begin;
    const float* up = up_.as<float>() + t * ffn_width + hidden.begin;
    SiluMul(DType::kF32, gate, up, hidden.size(), gate);
  });
  // down: partial sums over the slice.
  if (hidden.size() > 0) {
    Multiply(w.down, {0, width}, hidden, gate_.as<float>(), ffn_width, send, width);
  } else {
    std::fill_n(send, tokens() * width, 0.0f);
  }
  NoteFaults(layer, Device::TokenStage::kFfn, send, width, width);
}

void TokenPass::EndLayer(const float* gathered) {
  const int64_t floats = tokens() * config_.width;
  for (int r = 0; r < batch_->ranks; ++r) {
    AddInPlace(x_.as<float>(), gathered + r * floats, floats);
  }
}

void TokenPass::Hidden(float* out) {
  Norm(model_.model().output_norm());
  std::copy_n(normed_.as<float>(), tokens() * config_.width, out);
}

}  // namespace ringfill
