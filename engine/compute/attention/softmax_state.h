// The online-softmax state of one (query row, head), and the only way to merge two of them.
//
// A state stands for a set of scores s_j with values v_j:
//   max = max_j s_j * log2(e)       (scores are kept in base-2 units, as the kernels exponentiate)
//   sum = sum_j 2^(s_j*log2(e) - max)
//   acc = sum_j 2^(s_j*log2(e) - max) * v_j
// so acc / sum is the attention output. The empty state (max = -inf, sum = 0, acc = 0) merges as
// identity, so a rank that sees no key is an ordinary rank. All members are float32 whatever the
// storage type. LogSumExp() answers in natural-log units; nothing else mixes the two bases.
//
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); the merge is
// the one of FlashAttention and ring attention, with the accumulator rescaled along with the sum.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

namespace ringfill {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// Points into arrays owned elsewhere: one row's state.
struct SoftmaxRow {
  float* max;  // one value
  float* sum;  // one value
  float* acc;  // [head_dim]
};

// `rows` states side by side. max and sum: [rows]; acc: [rows, head_dim].
struct SoftmaxRows {
  float* max;
  float* sum;
  float* acc;

  SoftmaxRow Row(int i, int head_dim) const {
    return {max + i, sum + i, acc + static_cast<ptrdiff_t>(i) * head_dim};
  }
};

// Sets `rows` states to empty.
inline void ClearSoftmax(const SoftmaxRows& state, int rows, int head_dim) {
  for (int i = 0; i < rows; ++i) {
    state.max[i] = -std::numeric_limits<float>::infinity();
    state.sum[i] = 0.0f;
  }
  for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(rows) * head_dim; ++i) state.acc[i] = 0.0f;
}

// Merges `from` into `into`. Either may be empty. A state is empty when its sum is 0, so that a sum
// of NaN (whatever became of its maximum) reaches the result instead of passing for an empty state.
inline void MergeSoftmax(const SoftmaxRow& from, const SoftmaxRow& into, int head_dim) {
  if (*from.sum == 0.0f) return;
  const float max = std::fmax(*from.max, *into.max);
  const float scale_from = std::exp2(*from.max - max);
  const float scale_into = *into.sum == 0.0f ? 0.0f : std::exp2(*into.max - max);
  *into.max = max;
  *into.sum = *into.sum * scale_into + *from.sum * scale_from;
  for (int d = 0; d < head_dim; ++d) {
    into.acc[d] = into.acc[d] * scale_into + from.acc[d] * scale_from;
  }
}

// log(sum_j e^(s_j)), natural logarithm; -inf when empty.
inline float LogSumExp(const SoftmaxRow& row) {
  if (*row.sum == 0.0f) return -std::numeric_limits<float>::infinity();
  return *row.max * kLn2 + std::log(*row.sum);
}

// out[d] = acc[d] / sum; zeros when empty.
inline void NormalizeSoftmax(const SoftmaxRow& row, float* out, int head_dim) {
  const float inverse = *row.sum == 0.0f ? 0.0f : 1.0f / *row.sum;
  for (int d = 0; d < head_dim; ++d) out[d] = row.acc[d] * inverse;
}

}  // namespace ringfill
