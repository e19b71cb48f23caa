// A run of KV pages with random content for the attention tests, and tiles that look at it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/float_types.h"
#include "engine/compute/attention/attention.h"

namespace ringfill {

struct RunOptions {
  int64_t tokens = 0;
  // True: pages lie scattered, with gaps, behind an index. False: page i at i * stride.
  bool indexed = true;
  float k_scale = 1.0f;
  uint32_t seed = 1;
};

// Of mean 0 and deviation 1, nearly normal: the sum of four uniform numbers. The standard library's
// normal numbers take a logarithm each, which was half of a sanitized test's time.
inline float RoughNormal(std::mt19937& rng) {
  const uint32_t a = rng(), b = rng();
  const auto sum = static_cast<float>((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
  return (sum / 65536 - 2) * std::sqrt(3.0f);
}

// Owns the pages. Everything that no token was stored to is NaN in every type: gaps, the head and
// tail of a page, tokens of the last page past the end of the run.
class PagedRun {
 public:
  PagedRun(const KvBlockShape& shape, const RunOptions& options)
      : shape_(shape), pages_((options.tokens + shape.page_tokens - 1) / shape.page_tokens) {
    const size_t block = shape.BlockBytes();
    k_offset_ = 16;
    v_offset_ = k_offset_ + block + 48;
    stride_ = v_offset_ + block + 80;
    std::mt19937 rng(options.seed);
    if (options.indexed) {
      for (int64_t i = 0; i < pages_; ++i)
        index_.push_back(static_cast<uint32_t>(3 * i + rng() % 3));
      std::shuffle(index_.begin(), index_.end(), rng);
      // Pages past the run lie nowhere: reading one is a crash.
      index_.resize(pages_ + 80, 0xfffffff0u);
    }
    memory_.assign(stride_ * (options.indexed ? 3 * pages_ : pages_), std::byte{0xff});
    Fill(options, rng);
  }

  KvBlocks blocks(int64_t first_page = 0) const {
    if (!index_.empty()) {
      return {memory_.data(), index_.data() + first_page, stride_, k_offset_, v_offset_};
    }
    return {memory_.data() + first_page * stride_, nullptr, stride_, k_offset_, v_offset_};
  }

  // Replaces one stored token's K or V by NaN.
  void Poison(int64_t token, bool key) {
    std::vector<float> k(shape_.head_dim), v(shape_.head_dim);
    std::byte* page = Page(token / shape_.page_tokens);
    const int t = static_cast<int>(token % shape_.page_tokens);
    LoadKv(shape_, t, page + k_offset_, page + v_offset_, k.data(), v.data());
    (key ? k : v).assign(shape_.head_dim, NAN);
    StoreKv(shape_, t, 1, k.data(), v.data(), shape_.head_dim, page + k_offset_, page + v_offset_);
  }

 private:
  std::byte* Page(int64_t i) { return memory_.data() + (index_.empty() ? i : index_[i]) * stride_; }

  void Fill(const RunOptions& options, std::mt19937& rng) {
    const size_t dim = shape_.head_dim;
    for (int64_t first = 0; first < options.tokens; first += shape_.page_tokens) {
      const int rows =
          static_cast<int>(std::min<int64_t>(shape_.page_tokens, options.tokens - first));
      std::vector<float> k(rows * dim), v(rows * dim);
      for (float& x : k) x = options.k_scale * RoughNormal(rng);
      for (float& x : v) x = RoughNormal(rng);
      std::byte* page = Page(first / shape_.page_tokens);
      StoreKv(shape_, 0, rows, k.data(), v.data(), dim, page + k_offset_, page + v_offset_);
    }
  }

  const KvBlockShape shape_;
  const int64_t pages_;
  size_t k_offset_, v_offset_, stride_;
  std::vector<uint32_t> index_;
  std::vector<std::byte> memory_;
};

// Query rows and their states for a kernel call.
class TestTile {
 public:
  TestTile(const KvBlockShape& shape, int group, std::vector<int64_t> visible, uint32_t seed)
      : shape_(shape), group_(group), visible_(std::move(visible)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::vector<float> q(rows() * shape.head_dim);
    for (float& x : q) x = normal(rng);
    q_.resize(q.size() * DTypeBytes(shape.type));
    PackQueries(shape.type, shape.head_dim, q.data(), q.size(), q_.data());
    max_.resize(rows());
    sum_.resize(rows());
    acc_.resize(q.size());
    ClearSoftmax(state(), rows(), shape.head_dim);
  }

  int rows() const { return static_cast<int>(visible_.size()) * group_; }
  SoftmaxRows state() { return {max_.data(), sum_.data(), acc_.data()}; }
  std::vector<int64_t>& visible() { return visible_; }
  void SetBegin(int64_t begin) { begin_ = begin; }

  // As if the rows had already seen other keys.
  void RandomState(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows(); ++i) {
      max_[i] = 2.0f * normal(rng);
      sum_[i] = 1.0f + std::abs(normal(rng));
    }
    for (float& x : acc_) x = normal(rng);
  }

  AttentionTile tile(const KvBlocks& kv) {
    return {q_.data(), static_cast<int>(visible_.size()), group_, kv, visible_.data(), state(),
            begin_};
  }
  // Token `token` of this tile alone.
  AttentionTile token_tile(const KvBlocks& kv, int token) { return tokens_tile(kv, token, 1); }
  // Tokens [token, token + tokens) of this tile.
  AttentionTile tokens_tile(const KvBlocks& kv, int token, int tokens) {
    const ptrdiff_t row = static_cast<ptrdiff_t>(token) * group_;
    const ptrdiff_t i = row * shape_.head_dim;
    return {q_.data() + i * DTypeBytes(shape_.type),
            tokens,
            group_,
            kv,
            visible_.data() + token,
            {max_.data() + row, sum_.data() + row, acc_.data() + i},
            begin_};
  }

  void Run(const AttentionKernel& kernel, const KvBlocks& kv) { RunTile(kernel, tile(kv)); }
  // With scratch full of NaN and not a byte more of it than asked for.
  static void RunTile(const AttentionKernel& kernel, const AttentionTile& tile) {
    const size_t bytes = (kernel.ScratchBytes(tile.tokens * tile.group) + 63) / 64 * 64;
    std::byte* scratch = static_cast<std::byte*>(std::aligned_alloc(64, bytes + 64));
    std::memset(scratch, 0xff, bytes + 64);
    kernel.Run(tile, scratch);
    for (size_t i = bytes; i < bytes + 64; ++i) {
      if (scratch[i] != std::byte{0xff}) std::abort();
    }
    std::free(scratch);
  }

  const std::vector<float>& max() const { return max_; }
  const std::vector<float>& sum() const { return sum_; }
  const std::vector<float>& acc() const { return acc_; }

 private:
  const KvBlockShape shape_;
  const int group_;
  std::vector<int64_t> visible_;
  int64_t begin_ = 0;
  std::vector<std::byte> q_;
  std::vector<float> max_, sum_, acc_;
};

}  // namespace ringfill
