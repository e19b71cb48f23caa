// Picking tokens from logits on the device, with the definitions of request/sampler.h: order of the
// cuts (top-k, temperature, min-p, top-p), ties to the lower id, the same uniform draw walked in
// the same order. Weights are summed as integers in units of 2^-40 of the largest, so that a result
// does not depend on the order in which threads add; it differs from the CPU's only where a draw
// falls within rounding of a boundary.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

inline constexpr int kMaxTopLogprobs = 64;
// So many of the largest weight still fit a sum, and an id its part of a key.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 22;

// A token whose logit is changed before the cuts; each id at most once a row. Log-probabilities are
// those of the unmodified distribution.
struct LogitAdjustment {
  static constexpr int32_t kBanned = -1;
  int32_t id;
  int32_t count;  // occurrences so far, prompt included: > 0 penalised; kBanned: never picked
  float raw;      // scratch of the kernel
};

struct SampleRow {
  float temperature = 0.0f;   // 0: greedy, the first of the largest
  int32_t top_k = 0;          // 0: off
  float top_p = 1.0f;         // 1: off
  float min_p = 0.0f;         // 0: off
  double draw = 0.0;          // UniformDraw: in [0, 1)
  int32_t top_logprobs = -1;  // -1: no log-probabilities; else up to kMaxTopLogprobs
  // Of LogitAdjustments with count > 0, in this order: positive logits are divided by `repetition`
  // and negative ones multiplied with it (Keskar et al., "CTRL", 2019); then count * frequency
  // and presence are subtracted.
  float repetition = 1.0f;
  float frequency = 0.0f;
  float presence = 0.0f;
  int32_t first_adjustment = 0;
  int32_t adjustments = 0;
};

enum class SampleStatus : int32_t { kOk = 0, kNotFinite = 1, kAllBanned = 2 };

struct SampledToken {
  SampleStatus status;
  int32_t id;                       // kNotFinite: the first token whose logit is not finite
  float logprob;                    // natural; only with top_logprobs >= 0
  int32_t top;                      // entries of the lists
  int32_t top_id[kMaxTopLogprobs];  // descending, ties by lower id
  float top_logprob[kMaxTopLogprobs];
};

struct SampleArgs {
  float* logits;  // [rows][vocab]; changed while the kernel runs, and put back
  int64_t rows;
  int64_t vocab;                 // at most kMaxSampledVocab
  const SampleRow* row;          // [rows]
  LogitAdjustment* adjustments;  // of all rows; may be null when there are none
  SampledToken* out;             // [rows]
};
[[nodiscard]] int SampleTokens(const SampleArgs& args, KernelStream stream);

// The log-probability of a target token, gathered over blocks of the vocabulary.
struct ScoreState {
  double sum;  // of e^(logit - max)
  float max;
  float target_logit;
};
struct ScoreArgs {
  const float* logits;  // [rows][count]: tokens [begin, begin + count)
  int64_t rows;
  int64_t begin;
  int64_t count;
  const int32_t* target;  // [rows]
  ScoreState* state;      // [rows]; set by the block with begin 0
};
[[nodiscard]] int ScoreBlock(const ScoreArgs& args, KernelStream stream);
// out[r] = target_logit - log(sum of e^logit), natural.
[[nodiscard]] int FinishScores(const ScoreState* state, int64_t rows, float* out,
                               KernelStream stream);

}  // namespace ringfill::gpu
