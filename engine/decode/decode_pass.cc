#include "engine/decode/decode_pass.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/compute/products/vector_product.h"

namespace ringfill {
namespace {

// Rows of a weight matrix that one task multiplies.
constexpr int64_t kTaskRows = 64;
// A part of a token's local KV that one attention task reads, at least.
constexpr int64_t kMinSplitPages = 8;

}  // namespace

DecodePass::DecodePass(Rank& rank, const StepPlan& plan, RankStepResult& result)
    : rank_(rank),
      ctx_(rank.context),
      config_(rank.context.config()),
      plan_(plan),
      result_(result),
      batch_(static_cast<int>(plan.decodes.size())),
      group_(rank.context.group()) {}

absl::Status DecodePass::Run() {
  const Instant start = ctx_.clock->Now();
  const auto batch = static_cast<size_t>(batch_);
  const Rope& rope = ctx_.forward->rope();
  x_.resize(batch * static_cast<size_t>(config_.width));
  normed_.resize(x_.size());
  qkv_.resize(batch * static_cast<size_t>(config_.q_width() + 2 * config_.kv_width()));
  attention_.resize(batch * static_cast<size_t>(config_.q_width()));
  ffn_.resize(batch * static_cast<size_t>(config_.ffn_width));
  angles_.resize(batch * static_cast<size_t>(rope.rope_dims()));
  q_packed_.resize(attention_.size() * DTypeBytes(ctx_.kv_shape.type));
  for (int b = 0; b < batch_; ++b) {
    const DecodeToken& decode = plan_.decodes[static_cast<size_t>(b)];
    const WeightMatrix& embedding = ctx_.model->embedding();
    DequantizeRow(embedding.type, embedding.Row(decode.token), config_.width,
                  x_.data() + int64_t{b} * config_.width);
    rope.Angles(decode.position, angles_.data() + int64_t{b} * rope.rope_dims());
    visible_.push_back(rank_.placement.TokensBefore(rank_.index(), decode.position + 1));
  }
  for (auto& scratch : rank_.scratch) {
    Rank::Reserve(scratch->attention, ctx_.attention->ScratchBytes(group_));
  }
  for (int layer = 0; layer < config_.layers; ++layer) {
    RF_RETURN_IF_ERROR(ProjectQkv(layer));
    StoreOwnKv(layer);
    RF_RETURN_IF_ERROR(Attend(layer));
    RF_RETURN_IF_ERROR(Finish(layer));
  }
  RmsNorm(x_.data(), ctx_.model->output_norm().data(), config_.norm_epsilon, batch_, config_.width,
          DType::kF32, normed_.data());
  const double total = Seconds(ctx_.clock->Now() - start);
  result_.decode_wait_s += wait_s_;
  result_.decode_busy_s += std::max(0.0, total - wait_s_);
  return absl::OkStatus();
}

void DecodePass::Multiply(const WeightMatrix& w, Slice rows, Slice cols, const float* x,
                          int64_t x_stride, float* y, int64_t y_stride) {
  const int64_t tasks = (rows.size() + kTaskRows - 1) / kTaskRows;
  rank_.team.ParallelFor(tasks, [&](int, int64_t i) {
    const int64_t begin = rows.begin + i * kTaskRows;
    VectorProduct({.w = &w,
                   .row_begin = begin,
                   .row_end = std::min(begin + kTaskRows, rows.end),
                   .col_begin = cols.begin,
                   .col_end = cols.end,
                   .x = x,
                   .x_stride = static_cast<ptrdiff_t>(x_stride),
                   .y = y,
                   .y_stride = static_cast<ptrdiff_t>(y_stride),
                   .batch = batch_},
                  ctx_.isa);
  });
}

absl::Status DecodePass::Gather(const std::vector<float>& send, std::vector<float>& recv) {
  recv.resize(send.size() * static_cast<size_t>(rank_.ranks()));
  const Instant before = ctx_.clock->Now();
  RF_RETURN_IF_ERROR(rank_.comm->AllGather(std::as_bytes(std::span(send)),
                                           std::as_writable_bytes(std::span(recv)),
                                           before + rank_.peer_timeout));
  wait_s_ += Seconds(ctx_.clock->Now() - before);
  return absl::OkStatus();
}

absl::Status DecodePass::ProjectQkv(int layer) {
  const LayerWeights& w = ctx_.model->layers()[static_cast<size_t>(layer)];
  RmsNorm(x_.data(), w.attention_norm.data(), config_.norm_epsilon, batch_, config_.width,
          DType::kF32, normed_.data());
  // Slices of [q rows, k rows, v rows] laid end to end.
  const int64_t parts[] = {config_.q_width(), config_.kv_width(), config_.kv_width()};
  const WeightMatrix* matrices[] = {&w.q, &w.k, &w.v};
  const int64_t total = parts[0] + parts[1] + parts[2];
  const Slice mine = SliceOf(total, 1, rank_.index(), rank_.ranks());
  const int64_t stride = rank_.ranks() == 1 ? total : LargestSlice(total, 1, rank_.ranks());
  std::vector<float>& out = rank_.ranks() == 1 ? qkv_ : send_;
  out.resize(static_cast<size_t>(batch_ * stride));
  int64_t first = 0;
  for (int m = 0; m < 3; ++m) {
    const Slice rows{std::clamp<int64_t>(mine.begin - first, 0, parts[m]),
                     std::clamp<int64_t>(mine.end - first, 0, parts[m])};
    if (rows.size() > 0) {
      // y is indexed by the matrix's own rows, so it begins where row 0 would lie.
      Multiply(*matrices[m], rows, {0, config_.width}, normed_.data(), config_.width,
               out.data() + (first - mine.begin), stride);
    }
    first += parts[m];
  }
  if (rank_.ranks() > 1) {
    RF_RETURN_IF_ERROR(Gather(send_, recv_));
    for (int r = 0; r < rank_.ranks(); ++r) {
      const Slice theirs = SliceOf(total, 1, r, rank_.ranks());
      for (int b = 0; b < batch_; ++b) {
        std::copy_n(recv_.data() + (int64_t{r} * batch_ + b) * stride, theirs.size(),
                    qkv_.data() + b * total + theirs.begin);
      }
    }
  }
  const Rope& rope = ctx_.forward->rope();
  for (int b = 0; b < batch_; ++b) {
    float* row = qkv_.data() + b * total;
    const float* angles = angles_.data() + int64_t{b} * rope.rope_dims();
    rope.Apply(angles, config_.heads, row);
    rope.Apply(angles, config_.kv_heads, row + config_.q_width());
    PackQueries(ctx_.kv_shape.type, config_.head_dim, row, static_cast<size_t>(config_.q_width()),
                q_packed_.data() + static_cast<size_t>(b) * static_cast<size_t>(config_.q_width()) *
                                       DTypeBytes(ctx_.kv_shape.type));
  }
  return absl::OkStatus();
}

void DecodePass::StoreOwnKv(int layer) {
  const int64_t stride = config_.q_width() + 2 * config_.kv_width();
  for (int b = 0; b < batch_; ++b) {
    const DecodeToken& decode = plan_.decodes[static_cast<size_t>(b)];
    if (rank_.placement.Home(decode.position) != rank_.index()) continue;
    const int64_t local = rank_.placement.LocalToken(decode.position);
    const auto& pages = decode.pages[static_cast<size_t>(rank_.index())];
    const int page_tokens = ctx_.kv_shape.page_tokens;
    std::byte* page = rank_.pool.Page(pages[static_cast<size_t>(local / page_tokens)]);
    const float* k = qkv_.data() + b * stride + config_.q_width();
    const float* v = k + config_.kv_width();
    for (int g = 0; g < config_.kv_heads; ++g) {
      StoreKv(ctx_.kv_shape, static_cast<int>(local % page_tokens), 1, k + g * config_.head_dim,
              v + g * config_.head_dim, config_.kv_width(), page + ctx_.geometry.KOffset(layer, g),
              page + ctx_.geometry.VOffset(layer, g));
    }
  }
}

void DecodePass::AttendLocally(int layer) {
  const int head_dim = config_.head_dim;
  const int64_t rows = int64_t{batch_} * config_.heads;
  const int64_t page_tokens = ctx_.kv_shape.page_tokens;
  // send_: max [batch][heads], sum likewise, acc [batch][heads][head_dim]
  const SoftmaxRows total{send_.data(), send_.data() + rows, send_.data() + 2 * rows};
  ClearSoftmax(total, static_cast<int>(rows), head_dim);
  struct Task {
    int b;
    int g;
    int64_t first_page;
    int64_t tokens;
  };
  std::vector<Task> tasks;
  const int64_t wanted_splits =
      std::max<int64_t>(1, 2 * rank_.team.size() / std::max(1, batch_ * config_.kv_heads));
  for (int b = 0; b < batch_; ++b) {
    const int64_t visible = visible_[static_cast<size_t>(b)];
    const int64_t pages = (visible + page_tokens - 1) / page_tokens;
    const int64_t splits = std::clamp<int64_t>(pages / kMinSplitPages, 1, wanted_splits);
    const int64_t each = (pages + splits - 1) / std::max<int64_t>(1, splits);
    for (int g = 0; g < config_.kv_heads; ++g) {
      for (int64_t page = 0; page < pages; page += each) {
        tasks.push_back({b, g, page, std::min(visible - page * page_tokens, each * page_tokens)});
      }
    }
  }
  const int64_t state_floats = int64_t{group_} * (2 + head_dim);
  std::vector<float> states(tasks.size() * static_cast<size_t>(state_floats));
  auto state_of = [&](size_t i) {
    float* at = states.data() + static_cast<int64_t>(i) * state_floats;
    return SoftmaxRows{at, at + group_, at + 2 * group_};
  };
  rank_.team.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int thread, int64_t i) {
    const Task& task = tasks[static_cast<size_t>(i)];
    const SoftmaxRows state = state_of(static_cast<size_t>(i));
    ClearSoftmax(state, group_, head_dim);
    const int64_t first_row = int64_t{task.b} * config_.heads + int64_t{task.g} * group_;
    const auto& pages =
        plan_.decodes[static_cast<size_t>(task.b)].pages[static_cast<size_t>(rank_.index())];
    ctx_.attention->Run(
        {.q = q_packed_.data() +
              static_cast<size_t>(first_row * head_dim) * DTypeBytes(ctx_.kv_shape.type),
         .tokens = 1,
         .group = group_,
         .kv = {rank_.pool.base(), pages.data() + task.first_page, ctx_.geometry.PageBytes(),
                ctx_.geometry.KOffset(layer, task.g), ctx_.geometry.VOffset(layer, task.g)},
         .visible = &task.tokens,
         .state = state},
        rank_.scratch[static_cast<size_t>(thread)]->attention.data());
  });
  for (size_t i = 0; i < tasks.size(); ++i) {
    const int64_t first_row = int64_t{tasks[i].b} * config_.heads + int64_t{tasks[i].g} * group_;
    for (int h = 0; h < group_; ++h) {
      MergeSoftmax(state_of(i).Row(h, head_dim),
                   total.Row(static_cast<int>(first_row) + h, head_dim), head_dim);
    }
  }
}

absl::Status DecodePass::Attend(int layer) {
  const int head_dim = config_.head_dim;
  const int64_t rows = int64_t{batch_} * config_.heads;
  send_.resize(static_cast<size_t>(rows * (2 + head_dim)));
  AttendLocally(layer);
  RF_RETURN_IF_ERROR(Gather(send_, recv_));
  auto state_of = [&](int r) {
    float* at = recv_.data() + static_cast<int64_t>(r) * rows * (2 + head_dim);
    return SoftmaxRows{at, at + rows, at + 2 * rows};
  };
  const SoftmaxRows merged = state_of(0);
  for (int i = 0; i < static_cast<int>(rows); ++i) {
    for (int r = 1; r < rank_.ranks(); ++r) {
      MergeSoftmax(state_of(r).Row(i, head_dim), merged.Row(i, head_dim), head_dim);
    }
    NormalizeSoftmax(merged.Row(i, head_dim), attention_.data() + int64_t{i} * head_dim, head_dim);
  }
  return absl::OkStatus();
}

absl::Status DecodePass::Finish(int layer) {
  const LayerWeights& w = ctx_.model->layers()[static_cast<size_t>(layer)];
  const int n = rank_.ranks();
  const int64_t width = config_.width;
  // o: rows sliced, gathered.
  const Slice mine = SliceOf(width, 1, rank_.index(), n);
  const int64_t stride = LargestSlice(width, 1, n);
  send_.resize(static_cast<size_t>(batch_ * stride));
  Multiply(w.o, mine, {0, config_.q_width()}, attention_.data(), config_.q_width(),
           send_.data() - mine.begin, stride);
  RF_RETURN_IF_ERROR(Gather(send_, recv_));
  for (int r = 0; r < n; ++r) {
    const Slice theirs = SliceOf(width, 1, r, n);
    for (int b = 0; b < batch_; ++b) {
      AddInPlace(x_.data() + b * width + theirs.begin,
                 recv_.data() + (int64_t{r} * batch_ + b) * stride, theirs.size());
    }
  }
  RmsNorm(x_.data(), w.ffn_norm.data(), config_.norm_epsilon, batch_, width, DType::kF32,
          normed_.data());
  // gate, up: the hidden dimension sliced on the quantisation blocks of down, whose columns it is.
  const int64_t block = GetWeightTypeInfo(w.down.type).block_weights;
  const Slice hidden = SliceOf(config_.ffn_width, block, rank_.index(), n);
  std::vector<float>& up = recv_;
  up.resize(static_cast<size_t>(int64_t{batch_} * config_.ffn_width));
  Multiply(w.gate, hidden, {0, width}, normed_.data(), width, ffn_.data(), config_.ffn_width);
  Multiply(w.up, hidden, {0, width}, normed_.data(), width, up.data(), config_.ffn_width);
  for (int b = 0; b < batch_; ++b) {
    const int64_t at = int64_t{b} * config_.ffn_width + hidden.begin;
    SiluMul(DType::kF32, ffn_.data() + at, up.data() + at, hidden.size(), ffn_.data() + at);
  }
  // down: partial sums over the slice, added in rank order.
  send_.assign(static_cast<size_t>(batch_ * width), 0.0f);
  if (hidden.size() > 0) {
    Multiply(w.down, {0, width}, hidden, ffn_.data(), config_.ffn_width, send_.data(), width);
  }
  RF_RETURN_IF_ERROR(Gather(send_, recv_));
  for (int r = 0; r < n; ++r) {
    AddInPlace(x_.data(), recv_.data() + int64_t{r} * batch_ * width, batch_ * width);
  }
  return absl::OkStatus();
}

}  // namespace ringfill
