#include "tests/testing/reference_model.h"

#include <algorithm>
#include <cmath>

namespace ringfill {
namespace {

using Matrix = std::vector<std::vector<double>>;  // [rows][cols]

std::vector<double> Multiply(const WeightMatrix& w, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(w.rows));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    DequantizeRow(w.type, w.Row(r), w.cols, row.data());
    double sum = 0;
    for (size_t c = 0; c < row.size(); ++c) sum += double{row[c]} * x[c];
    y[static_cast<size_t>(r)] = sum;
  }
  return y;
}

std::vector<double> Norm(const std::vector<double>& x, const std::vector<float>& weight,
                         double epsilon) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * double{weight[i]};
  return y;
}

void Turn(const Rope::Options& rope, int64_t position, int heads, std::vector<double>& x) {
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < rope.rope_dims / 2; ++i) {
      const double factor =
          rope.factors.empty() ? 1.0 : double{rope.factors[static_cast<size_t>(i)]};
      const double angle = static_cast<double>(position) * rope.position_scale *
                           std::pow(rope.base, -2.0 * i / rope.rope_dims) / factor;
      double& a = x[static_cast<size_t>(h * rope.head_dim + 2 * i)];
      double& b = x[static_cast<size_t>(h * rope.head_dim + 2 * i + 1)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
}

std::vector<double> AttendTo(const ModelConfig& c, const std::vector<double>& q, const Matrix& k,
                             const Matrix& v, size_t begin, size_t end) {
  std::vector<double> out(q.size());
  const int group = c.heads / c.kv_heads;
  for (int h = 0; h < c.heads; ++h) {
    const size_t kv = static_cast<size_t>((h / group) * c.head_dim);
    const size_t at = static_cast<size_t>(h * c.head_dim);
    const auto dim = static_cast<size_t>(c.head_dim);
    std::vector<double> scores(end);
    double max = -INFINITY;
    for (size_t t = begin; t < end; ++t) {
      for (size_t d = 0; d < dim; ++d) scores[t] += q[at + d] * k[t][kv + d];
      scores[t] /= std::sqrt(static_cast<double>(c.head_dim));
      max = std::max(max, scores[t]);
    }
    double sum = 0;
    for (size_t t = begin; t < end; ++t) sum += scores[t] = std::exp(scores[t] - max);
    for (size_t t = begin; t < end; ++t) {
      for (size_t d = 0; d < dim; ++d) out[at + d] += scores[t] / sum * v[t][kv + d];
    }
  }
  return out;
}

void Add(std::vector<double>& x, const std::vector<double>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

std::vector<std::vector<float>> ReferenceLogits(const Model& model,
                                                const std::vector<TokenId>& tokens,
                                                const std::vector<int64_t>& document_starts) {
  const ModelConfig& c = model.config();
  Matrix x(tokens.size());
  std::vector<size_t> begin(tokens.size(), 0);  // what a token sees from
  for (const int64_t start : document_starts) {
    for (size_t t = static_cast<size_t>(start); t < tokens.size(); ++t) {
      begin[t] = static_cast<size_t>(start);
    }
  }
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<float> row(static_cast<size_t>(c.width));
    DequantizeRow(model.embedding().type, model.embedding().Row(tokens[t]), c.width, row.data());
    x[t].assign(row.begin(), row.end());
  }
  for (const LayerWeights& w : model.layers()) {
    Matrix q(x.size()), k(x.size()), v(x.size());
    for (size_t t = 0; t < x.size(); ++t) {
      const std::vector<double> h = Norm(x[t], w.attention_norm, c.norm_epsilon);
      q[t] = Multiply(w.q, h);
      k[t] = Multiply(w.k, h);
      v[t] = Multiply(w.v, h);
      Turn(c.rope, static_cast<int64_t>(t), c.heads, q[t]);
      Turn(c.rope, static_cast<int64_t>(t), c.kv_heads, k[t]);
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Add(x[t], Multiply(w.o, AttendTo(c, q[t], k, v, begin[t], t + 1)));
      const std::vector<double> h = Norm(x[t], w.ffn_norm, c.norm_epsilon);
      std::vector<double> gate = Multiply(w.gate, h);
      const std::vector<double> up = Multiply(w.up, h);
      for (size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
      }
      Add(x[t], Multiply(w.down, gate));
    }
  }
  std::vector<std::vector<float>> out;
  for (const std::vector<double>& row : x) {
    const std::vector<double> logits =
        Multiply(model.output(), Norm(row, model.output_norm(), c.norm_epsilon));
    out.emplace_back(logits.begin(), logits.end());
  }
  return out;
}

double ReferenceLogprob(const std::vector<float>& logits, TokenId id) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(double{l} - max);
  return double{logits[static_cast<size_t>(id)]} - max - std::log(sum);
}

}  // namespace ringfill
