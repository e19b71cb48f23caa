#include "engine/compute/products/elementwise.h"

#include <cmath>

#include "base/check.h"
#include "base/float_types.h"

namespace ringfill {
namespace {

float Load(const float* p) { return *p; }
float Load(const Bf16* p) { return ToFloat(*p); }
void Store(float v, float* out) { *out = v; }
void Store(float v, Bf16* out) { *out = ToBf16(v); }

template <typename Out>
void RmsNormRows(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
                 Out* out) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double mean = squares / static_cast<double>(n);
    const float scale = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
    for (int64_t i = 0; i < n; ++i) Store(x[i] * scale * weight[i], out + i);
  }
}

template <typename T>
void SiluMulOf(const T* gate, const T* up, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = Load(gate + i);
    Store(g / (1.0f + std::exp(-g)) * Load(up + i), out + i);
  }
}

}  // namespace

void RmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t n,
             DType out_type, void* out) {
  if (out_type == DType::kF32) {
    RmsNormRows(x, weight, epsilon, rows, n, static_cast<float*>(out));
  } else {
    RmsNormRows(x, weight, epsilon, rows, n, static_cast<Bf16*>(out));
  }
}

void AddInPlace(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void SiluMul(DType type, const void* gate, const void* up, int64_t n, void* out) {
  if (type == DType::kF32) {
    SiluMulOf(static_cast<const float*>(gate), static_cast<const float*>(up), n,
              static_cast<float*>(out));
  } else {
    SiluMulOf(static_cast<const Bf16*>(gate), static_cast<const Bf16*>(up), n,
              static_cast<Bf16*>(out));
  }
}

void ConvertFloats(const float* x, int64_t n, DType type, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (type == DType::kF32) {
      static_cast<float*>(out)[i] = x[i];
    } else {
      static_cast<Bf16*>(out)[i] = ToBf16(x[i]);
    }
  }
}

bool AllFinite(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return false;
  }
  return true;
}

LogSumExpResult LogSumExpOf(const float* x, int64_t n) {
  RF_CHECK(n > 0);
  int64_t argmax = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > x[argmax]) argmax = i;
  }
  const double max = x[argmax];
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
  return {static_cast<float>(max + std::log(sum)), x[argmax], argmax};
}

}  // namespace ringfill
