#include "engine/compute/products/elementwise.h"

#include <cmath>

#include "base/check.h"
#include "engine/compute/products/elementwise_kernels.h"

namespace ringfill {
namespace {

const ElementwiseKernels& Best() {
  static const ElementwiseKernels& kernels = ElementwiseKernelsFor(DetectCpuIsa());
  return kernels;
}

}  // namespace

void RmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
             DType out_type, void* out) {
  Best().rms_norm(x, weight, epsilon, rows, n, out_type, out);
}

void AddInPlace(float* x, const float* y, int64_t n) { Best().add_in_place(x, y, n); }

void SiluMul(DType type, const void* gate, const void* up, int64_t n, void* out) {
  Best().silu_mul(type, gate, up, n, out);
}

void ConvertFloats(const float* x, int64_t n, DType type, void* out) {
  Best().convert_floats(x, n, type, out);
}

bool AllFinite(const float* x, int64_t n) { return Best().all_finite(x, n); }

LogSumExpResult LogSumExpOf(const float* x, int64_t n) {
  RF_CHECK(n > 0);
  return Best().log_sum_exp(x, n);
}

Rope::Rope(const Options& options) : options_(options) {
  const int pairs = options_.rope_dims / 2;
  RF_CHECK(options_.rope_dims >= 0 && options_.rope_dims % 2 == 0);
  RF_CHECK(options_.rope_dims <= options_.head_dim);
  RF_CHECK(options_.factors.empty() || options_.factors.size() == static_cast<size_t>(pairs));
  frequency_.resize(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    const double exponent = -2.0 * i / options_.rope_dims;
    frequency_[i] = options_.position_scale * std::pow(options_.base, exponent);
    if (!options_.factors.empty()) frequency_[i] /= static_cast<double>(options_.factors[i]);
  }
}

void Rope::Angles(int64_t position, float* cos_sin) const {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequency_[i];
    cos_sin[2 * i] = static_cast<float>(std::cos(angle));
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle));
  }
}

void Rope::Apply(const float* cos_sin, int heads, float* x) const {
  Best().rotate(cos_sin, options_.rope_dims, heads, options_.head_dim, x);
}

}  // namespace ringfill
