// Runs of KV pages in device memory with random content, queries and states for them, and the plain
// reference of attention over them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/compute/attention/softmax_state.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "tests/engine/compute/cuda/device_array.h"
#include "tests/engine/compute/cuda/elements.h"
#include "tests/engine/compute/cuda/far_pages.h"

namespace ringfill::gpu {

struct GpuKvOptions {
  Element type = Element::kBF16;
  int head_dim = 64;
  int kv_heads = 1;
  int page_tokens = 16;
  std::vector<int64_t> run_tokens = {};  // of each run
  bool indexed = true;                   // pages scattered with gaps, else consecutive
  float k_scale = 1.0f;
  uint32_t seed = 1;
};

// All that no token was stored to is NaN.
class GpuKv {
 public:
  explicit GpuKv(const GpuKvOptions& options) : options_(options), rng_(options.seed) {
    block_ = static_cast<int64_t>(options.page_tokens) * options.head_dim * 2;
    k_offset_ = 32;
    v_offset_ = k_offset_ + options.kv_heads * block_ + 48;
    stride_ = v_offset_ + options.kv_heads * block_ + 80;
    Place();
    std::vector<std::byte> image(static_cast<size_t>(stride_ * pages_), std::byte{0xff});
    for (size_t run = 0; run < options.run_tokens.size(); ++run) Fill(run, image);
    pool_ = DeviceArray<std::byte>(image);
    table_ = DeviceArray<uint32_t>(host_table_);
    runs_ = DeviceArray<KvRunView>(host_runs_);
  }

  const GpuKvOptions& options() const { return options_; }
  KvPages pages() const {
    return {pool_.data(), stride_, k_offset_, v_offset_, options_.page_tokens};
  }
  const uint32_t* table() const { return table_.data(); }
  const KvRunView* runs() const { return runs_.data(); }

  // Its pages, in their order. REQUIRES: there are as many.
  void CopyTo(FarPages& far) const {
    ASSERT_EQ(pages_, FarPages::kPages);
    for (int64_t i = 0; i < pages_; ++i) {
      far.Write(i, {pool_.data() + i * stride_, static_cast<size_t>(stride_)},
                cudaMemcpyDeviceToDevice);
    }
  }

  // [head_dim]
  const float* K(int run, int head, int64_t token) const { return At(k_, run, head, token); }
  const float* V(int run, int head, int64_t token) const { return At(v_, run, head, token); }

 private:
  int64_t PagesOf(size_t run) const {
    return (options_.run_tokens[run] + options_.page_tokens - 1) / options_.page_tokens;
  }

  void Place() {
    int64_t used = 0;
    for (size_t run = 0; run < options_.run_tokens.size(); ++run) {
      if (options_.indexed) {
        host_runs_.push_back({used, 0});
      } else {
        host_runs_.push_back({KvRunView::kConsecutive, used * stride_});
      }
      used += PagesOf(run);
    }
    pages_ = used;
    if (!options_.indexed) return;
    for (int64_t i = 0; i < used; ++i) {
      host_table_.push_back(static_cast<uint32_t>(2 * i + static_cast<int64_t>(rng_() % 2)));
    }
    pages_ = 2 * used;
    std::shuffle(host_table_.begin(), host_table_.end(), rng_);
  }

  std::byte* PageOf(size_t run, int64_t logical, std::vector<std::byte>& image) const {
    const KvRunView& view = host_runs_[run];
    const int64_t page =
        options_.indexed ? host_table_[static_cast<size_t>(view.first_page + logical)] : logical;
    return image.data() + view.offset + page * stride_;
  }

  void Fill(size_t run, std::vector<std::byte>& image) {
    const int64_t tokens = options_.run_tokens[run];
    const auto values = static_cast<size_t>(options_.kv_heads * tokens * options_.head_dim);
    std::normal_distribution<float> normal;
    std::vector<float> k(values), v(values);
    for (float& x : k) x = options_.k_scale * normal(rng_);
    for (float& x : v) x = normal(rng_);
    const int64_t row = options_.head_dim * 2;
    const std::vector<std::byte> k_bytes = ToBytes(options_.type, k);
    const std::vector<std::byte> v_bytes = ToBytes(options_.type, v);
    for (int head = 0; head < options_.kv_heads; ++head) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::byte* page = PageOf(run, t / options_.page_tokens, image);
        const int64_t within = head * block_ + t % options_.page_tokens * row;
        const int64_t from = (head * tokens + t) * row;
        std::memcpy(page + k_offset_ + within, k_bytes.data() + from, static_cast<size_t>(row));
        std::memcpy(page + v_offset_ + within, v_bytes.data() + from, static_cast<size_t>(row));
      }
    }
    k_.push_back(FromBytes(options_.type, k_bytes));
    v_.push_back(FromBytes(options_.type, v_bytes));
  }

  const float* At(const std::vector<std::vector<float>>& of, int run, int head,
                  int64_t token) const {
    const auto r = static_cast<size_t>(run);
    return of[r].data() + (head * options_.run_tokens[r] + token) * options_.head_dim;
  }

  const GpuKvOptions options_;
  std::mt19937 rng_;
  int64_t block_, k_offset_, v_offset_, stride_, pages_ = 0;
  std::vector<uint32_t> host_table_;
  std::vector<KvRunView> host_runs_;
  std::vector<std::vector<float>> k_, v_;  // [run] of [kv_heads][tokens][head_dim]
  DeviceArray<std::byte> pool_;
  DeviceArray<uint32_t> table_;
  DeviceArray<KvRunView> runs_;
};

// One softmax state a row, on the host.
struct HostStates {
  HostStates(int64_t rows, int head_dim)
      : dim(head_dim),
        max(static_cast<size_t>(rows), -INFINITY),
        sum(static_cast<size_t>(rows), 0.0f),
        acc(static_cast<size_t>(rows * head_dim), 0.0f) {}

  // As if the rows had seen other keys; every fifth is still empty.
  void Randomize(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < max.size(); ++i) {
      const bool empty = rng() % 5 == 0;
      max[i] = empty ? -INFINITY : 2.0f * normal(rng);
      sum[i] = empty ? 0.0f : 1.0f + std::fabs(normal(rng));
      for (int d = 0; d < dim; ++d) {
        acc[i * static_cast<size_t>(dim) + static_cast<size_t>(d)] = empty ? 0.0f : normal(rng);
      }
    }
  }
  SoftmaxRow Row(int64_t i) {
    return SoftmaxRows{max.data(), sum.data(), acc.data()}.Row(static_cast<int>(i), dim);
  }

  int dim;
  std::vector<float> max, sum, acc;
};

struct DeviceStates {
  explicit DeviceStates(const HostStates& host) : max(host.max), sum(host.sum), acc(host.acc) {}
  DeviceStates(size_t rows, int head_dim)
      : max(rows), sum(rows), acc(rows * static_cast<size_t>(head_dim)) {}

  SoftmaxArrays arrays() const { return {max.data(), sum.data(), acc.data()}; }
  void Read(HostStates& out) const {
    out.max = max.Read();
    out.sum = sum.Read();
    out.acc = acc.Read();
  }

  DeviceArray<float> max, sum, acc;
};

struct GpuQueryOptions {
  int group = 1;
  std::vector<int> run = {};          // [tokens]
  std::vector<int64_t> visible = {};  // [tokens]
  std::vector<int64_t> begin = {};    // [tokens], or empty
  bool fresh = true;                  // states start empty
  uint32_t seed = 2;
};

// Queries over a GpuKv, on host and device, with the states that they start from.
class GpuQueries {
 public:
  GpuQueries(const GpuKv& kv, const GpuQueryOptions& options)
      : kv_(kv), options_(options), start_(rows(), kv.options().head_dim) {
    std::mt19937 rng(options.seed);
    std::normal_distribution<float> normal;
    const int dim = kv.options().head_dim;
    // As PackQueries scales.
    const float scale = kLog2E / std::sqrt(static_cast<float>(dim));
    std::vector<float> q(static_cast<size_t>(rows() * dim));
    for (float& x : q) x = scale * normal(rng);
    const std::vector<std::byte> bytes = ToBytes(kv.options().type, q);
    q_ = FromBytes(kv.options().type, bytes);
    device_q_ = DeviceArray<std::byte>(bytes);
    visible_ = DeviceArray<int64_t>(options.visible);
    begin_ = DeviceArray<int64_t>(options.begin);
    if (!options.fresh) start_.Randomize(options.seed + 1);
  }

  int64_t tokens() const { return static_cast<int64_t>(options_.visible.size()); }
  int64_t rows() const { return kv_.options().kv_heads * tokens() * options_.group; }
  const HostStates& start() const { return start_; }
  const GpuQueryOptions& options() const { return options_; }

  AttentionArgs Args(const SoftmaxArrays& state) const {
    const GpuKvOptions& kv = kv_.options();
    return {.type = kv.type,
            .head_dim = kv.head_dim,
            .kv_heads = kv.kv_heads,
            .group = options_.group,
            .tokens = tokens(),
            .q = device_q_.data(),
            .state = state,
            .clear = options_.fresh,
            .kv = kv_.pages(),
            .page_table = kv_.table(),
            .runs = kv_.runs(),
            .visible = visible_.data(),
            .begin = begin_.data()};
  }

  // Two passes in double, merged with what the rows start from.
  HostStates Reference() const {
    HostStates out = start_;
    for (int64_t row = 0; row < rows(); ++row) MergeRow(row, out);
    return out;
  }

 private:
  void MergeRow(int64_t row, HostStates& out) const {
    const int dim = kv_.options().head_dim;
    const int64_t per_head = tokens() * options_.group;
    const auto head = static_cast<int>(row / per_head);
    const auto token = static_cast<size_t>(row % per_head / options_.group);
    const int run = options_.run[token];
    const int64_t begin = options_.begin.empty() ? 0 : options_.begin[token];
    std::vector<double> scores;
    double max = -INFINITY;
    for (int64_t t = begin; t < options_.visible[token]; ++t) {
      const float* k = kv_.K(run, head, t);
      double score = 0;
      for (int d = 0; d < dim; ++d) {
        score += double{q_[static_cast<size_t>(row * dim + d)]} * double{k[d]};
      }
      scores.push_back(score);
      max = std::max(max, score);
    }
    if (scores.empty()) return;
    float max_f = static_cast<float>(max);
    double sum = 0;
    std::vector<double> acc(static_cast<size_t>(dim));
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp2(scores[i] - double{max_f});
      const float* v = kv_.V(run, head, begin + static_cast<int64_t>(i));
      sum += p;
      for (int d = 0; d < dim; ++d) acc[static_cast<size_t>(d)] += p * double{v[d]};
    }
    float sum_f = static_cast<float>(sum);
    std::vector<float> acc_f(acc.begin(), acc.end());
    MergeSoftmax({&max_f, &sum_f, acc_f.data()}, out.Row(row), dim);
  }

  const GpuKv& kv_;
  const GpuQueryOptions options_;
  std::vector<float> q_;
  HostStates start_;
  DeviceArray<std::byte> device_q_;
  DeviceArray<int64_t> visible_, begin_;
};

// Log-sum-exp and output of all rows agree within what one rounding of the probabilities allows.
inline void ExpectStatesNear(Element type, HostStates& got, HostStates& want,
                             const std::string& what) {
  const float limit = type == Element::kF32 ? 1e-5f : 2.6f * Epsilon(type);
  const auto dim = static_cast<size_t>(want.dim);
  std::vector<float> a(dim), b(dim);
  for (size_t row = 0; row < want.sum.size(); ++row) {
    const SoftmaxRow got_row = got.Row(static_cast<int64_t>(row));
    const SoftmaxRow want_row = want.Row(static_cast<int64_t>(row));
    const float lse = LogSumExp(want_row);
    if (std::isinf(lse)) {
      ASSERT_EQ(*got_row.sum, 0.0f) << what << " row " << row;
      ASSERT_EQ(*got_row.max, -INFINITY) << what << " row " << row;
    } else {
      ASSERT_NEAR(LogSumExp(got_row), lse, 2e-5f * (1.0f + std::fabs(lse)))
          << what << " row " << row;
    }
    NormalizeSoftmax(got_row, a.data(), want.dim);
    NormalizeSoftmax(want_row, b.data(), want.dim);
    for (size_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(a[d], b[d], limit * (1.0f + std::fabs(b[d])))
          << what << " row " << row << " dim " << d;
    }
  }
}

}  // namespace ringfill::gpu
