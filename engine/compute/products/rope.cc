#include <cmath>

#include "base/check.h"
#include "engine/compute/products/elementwise.h"

namespace ringfill {

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
  for (int h = 0; h < heads; ++h, x += options_.head_dim) {
    for (int i = 0; i < options_.rope_dims; i += 2) {
      const float c = cos_sin[i], s = cos_sin[i + 1];
      const float even = x[i], odd = x[i + 1];
      x[i] = even * c - odd * s;
      x[i + 1] = even * s + odd * c;
    }
  }
}

}  // namespace ringfill
