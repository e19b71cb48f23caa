#include "engine/compute/cuda/fused_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/float_types.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/kernels/kv_pages.h"
#include "engine/compute/cuda/kernels/softmax.h"

namespace ringfill {
namespace {

// Both round probabilities to bf16, the library its outputs too.
constexpr float kOutputTolerance = 0.03f;
constexpr float kLogSumExpTolerance = 0.01f;  // in base-2 units

std::vector<Bf16> RandomValues(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<Bf16> out(count);
  for (Bf16& value : out) value = ToBf16(normal(random));
  return out;
}

class Trial {
 public:
  explicit Trial(CudaRank& rank)
      : rank_(rank),
        group_(rank.group()),
        dim_(rank.config.head_dim),
        tokens_(std::max(1, gpu::kFusedRows / group_)),
        rows_(int64_t{tokens_} * rank.config.heads),
        kv_(rank.Pages(rank.config.layers - 1)) {
    // Pages next to each other, and as far apart as the pool is.
    const std::set<int64_t> pages = {rank.pages - 1, rank.pages / 2, 0,
                                     std::min<int64_t>(1, rank.pages - 1)};
    for (const int64_t page : pages) pages_.push_back(static_cast<uint32_t>(page));
    std::reverse(pages_.begin(), pages_.end());
    keys_ = static_cast<int64_t>(pages_.size()) * kv_.page_tokens;
  }

  // Queues both ways; their states are there when the stream has got there.
  absl::Status Queue() {
    const size_t state_bytes = static_cast<size_t>(rows_ * (2 + dim_)) * sizeof(float);
    RF_ASSIGN_OR_RETURN(states_, rank_.memory.Allocate(2 * state_bytes, "attention scratch"));
    const size_t layer_bytes = rank_.geometry.LayerBytes();
    Upload lists(rank_.stream, rank_.upload);
    const auto kv_at = lists.Add(RandomValues(pages_.size() * layer_bytes / sizeof(Bf16), 1.0f, 1));
    const auto q_at = lists.Add(RandomValues(static_cast<size_t>(rows_ * dim_),
                                             2.0f / std::sqrt(static_cast<float>(dim_)), 2));
    const auto work_at = lists.Add(Work());
    const auto pages_at = lists.Add(pages_);
    const auto runs_at = lists.Add(std::vector<gpu::KvRunView>{{0, 0}});
    const auto visible_at = lists.Add(std::vector<int64_t>(static_cast<size_t>(tokens_), keys_));
    const auto entries = rank_.fused->Add({{.token = 0,
                                            .tokens = tokens_,
                                            .run = 0,
                                            .first_page = 0,
                                            .pages = static_cast<int32_t>(pages_.size()),
                                            .bit = 0}},
                                          lists);
    RF_RETURN_IF_ERROR(lists.Send());
    RF_RETURN_IF_ERROR(StorePages(lists.At<const std::byte>(kv_at)));
    gpu::AttentionArgs attention = {.type = gpu::Element::kBF16,
                                    .head_dim = dim_,
                                    .kv_heads = rank_.config.kv_heads,
                                    .group = group_,
                                    .tokens = tokens_,
                                    .q = lists.At<const void>(q_at),
                                    .state = rank_.States(states_.data(), tokens_),
                                    .clear = true,
                                    .kv = kv_,
                                    .page_table = lists.At<const uint32_t>(pages_at),
                                    .runs = lists.At<const gpu::KvRunView>(runs_at),
                                    .visible = lists.At<const int64_t>(visible_at),
                                    .begin = nullptr};
    RF_RETURN_IF_ERROR(
        rank_.Check(gpu::AttendPrefill({.attention = attention,
                                        .work = lists.At<const gpu::PrefillWork>(work_at),
                                        .works = static_cast<int>(Work().size()),
                                        .nonfinite = nullptr},
                                       rank_.stream.get()),
                    "AttendPrefill"));
    attention.state = rank_.States(states_.data() + state_bytes, tokens_);
    attention.clear = false;
    RF_RETURN_IF_ERROR(rank_.Check(
        gpu::ClearStates(attention.state, rows_, dim_, rank_.stream.get()), "ClearStates"));
    RF_RETURN_IF_ERROR(rank_.fused->Run(attention, entries, lists, nullptr, rank_.stream.get()));
    RF_RETURN_IF_ERROR(rank_.Check(
        gpu::PoisonPages(rank_.slab.data(), static_cast<int64_t>(rank_.geometry.PageBytes()),
                         attention.page_table, static_cast<int64_t>(pages_.size()),
                         rank_.stream.get()),
        "PoisonPages"));
    got_.resize(2 * state_bytes / sizeof(float));
    return rank_.CopyOut(states_.data(), 2 * state_bytes, got_.data());
  }

  // REQUIRES: the stream has got past Queue's work.
  absl::Status Compare() const {
    float worst_output = 0, worst_sum = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      const Row want = RowOf(0, row), got = RowOf(1, row);
      worst_sum = Worse(worst_sum, got.log_sum_exp - want.log_sum_exp);
      for (int d = 0; d < dim_; ++d) {
        const float wanted = want.acc[d] / want.sum;
        worst_output =
            Worse(worst_output, (got.acc[d] / got.sum - wanted) / (1.0f + std::fabs(wanted)));
      }
    }
    if (worst_output <= kOutputTolerance && worst_sum <= kLogSumExpTolerance) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(rank_.fused->name(),
                                            " differs from the kernels: outputs by ", worst_output,
                                            ", log-sum-exps by ", worst_sum));
  }

 private:
  struct Row {
    float log_sum_exp, sum;
    const float* acc;
  };

  std::vector<gpu::PrefillWork> Work() const {
    return gpu::PlanPrefill({{.token = 0, .tokens = tokens_, .run = 0, .bit = 0, .visible = keys_}},
                            group_);
  }

  absl::Status StorePages(const std::byte* kv) {
    const size_t bytes = rank_.geometry.LayerBytes();
    for (size_t i = 0; i < pages_.size(); ++i) {
      RF_RETURN_IF_CUDA_ERROR(
          rank_.gpu.index,
          cudaMemcpyAsync(kv_.base + pages_[i] * kv_.page_stride + kv_.k_offset, kv + i * bytes,
                          bytes, cudaMemcpyDeviceToDevice, rank_.stream.get()));
    }
    return absl::OkStatus();
  }

  Row RowOf(int64_t way, int64_t row) const {
    const float* const state = got_.data() + way * rows_ * (2 + dim_);
    const float max = state[row], sum = state[rows_ + row];
    return {max + std::log2(sum), sum, state + 2 * rows_ + row * dim_};
  }

  // NaN is the worst.
  static float Worse(float worst, float difference) {
    const float size = std::fabs(difference);
    return size <= worst || std::isnan(worst) ? worst : size;
  }

  CudaRank& rank_;
  const int group_, dim_, tokens_;
  const int64_t rows_;
  const gpu::KvPages kv_;
  std::vector<uint32_t> pages_;
  int64_t keys_ = 0;
  DeviceBuffer states_;
  std::vector<float> got_;
};

}  // namespace

absl::Status CheckFused(CudaRank& rank) {
  Trial trial(rank);
  rank.stream.Enqueue({.kind = OpKind::kAttend}, [&](cudaStream_t) { return trial.Queue(); });
  RF_RETURN_IF_ERROR(rank.stream.Synchronize(Clock::Real().Now() + kTrialLimit));
  return trial.Compare();
}

}  // namespace ringfill
