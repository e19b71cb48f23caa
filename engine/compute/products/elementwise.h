// The small per-token operations between products, vectorised for the machine's best instruction
// set (elementwise_kernels.h has each set by name). All are thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"

namespace ringfill {

// out[i] = x[i] * weight[i] / sqrt(mean(x^2) + epsilon), for each of `rows` rows of `n`. The mean
// is summed in double or pairwise. `out` is in `out_type`. Source: Zhang and Sennrich, "Root Mean
// Square Layer Normalization" (2019).
void RmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
             DType out_type, void* out);

// x[i] += y[i]
void AddInPlace(float* x, const float* y, int64_t n);

// out[i] = silu(gate[i]) * up[i] with silu(x) = x / (1 + e^-x); gate, up and out all in `type`. For
// bf16, float32 inside.
// Source: Shazeer, "GLU Variants Improve Transformer" (2020).
void SiluMul(DType type, const void* gate, const void* up, int64_t n, void* out);

// out[i] = x[i] in `type`.
void ConvertFloats(const float* x, int64_t n, DType type, void* out);

// True when all n values are finite.
bool AllFinite(const float* x, int64_t n);

// Rotary position embedding on interleaved pairs (2i, 2i+1), the order of GGUF Llama weights.
// Source: Su et al., "RoFormer" (2021). The angle of pair i at position p is
//   p * position_scale * base^(-2i/rope_dims) / factors[i]
// computed in double, so that it is exact at positions in the millions. Immutable; thread-safe.
class Rope {
 public:
  struct Options {
    int head_dim = 0;
    int rope_dims = 0;  // leading dims that turn, even, <= head_dim
    double base = 10000.0;
    double position_scale = 1.0;  // 1 / linear scaling factor
    std::vector<float> factors;   // empty, or rope_dims / 2 divisors (rope_freqs)
  };
  explicit Rope(const Options& options);

  // cos and sin of one position. cos_sin: [rope_dims] as pairs (cos, sin).
  void Angles(int64_t position, float* cos_sin) const;
  // Turns `heads` heads of [head_dim] floats, contiguous, in place, by angles from Angles().
  void Apply(const float* cos_sin, int heads, float* x) const;

  int rope_dims() const { return options_.rope_dims; }
  // Radians a position of each pair. [rope_dims / 2]
  const std::vector<double>& frequency() const { return frequency_; }

 private:
  Options options_;
  std::vector<double> frequency_;
};

// Returns log(sum_i e^(x[i])), natural, and the index and value of the largest (first of equals).
// -inf adds nothing; a NaN makes both values NaN and argmax 0. REQUIRES: n > 0.
struct LogSumExpResult {
  float log_sum_exp;
  float max;
  int64_t argmax;
};
LogSumExpResult LogSumExpOf(const float* x, int64_t n);

}  // namespace ringfill
