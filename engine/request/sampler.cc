#include "engine/request/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Logits are looked at in blocks, whose loops have no branches and no carried sums, so that the
// compiler turns them into vector code.
constexpr size_t kBlock = 256;
constexpr size_t kLanes = 8;

struct Candidate {
  TokenId id;
  float logit;
};

bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// e^x for x <= 0, relative error below 1e-6; 0 from kLogZero down. Source: range reduction to
// [-ln2/2, ln2/2] after Cody and Waite, Taylor polynomial of degree 7. Selects by mask, because
// compilers do not turn floating-point branches into vector code.
constexpr float kLogZero = -87.0f;

inline float SelectOrZero(bool keep, float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & -static_cast<uint32_t>(keep));
}

inline float Exp(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n as an integer; below kLogZero all of this is noise.
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return SelectOrZero(x > kLogZero, p * std::bit_cast<float>(exponent));
}

std::span<const float> Block(std::span<const float> logits, size_t begin) {
  return logits.subspan(begin, std::min(kBlock, logits.size() - begin));
}

// Folds x[i] into kLanes independent running values, then those into one.
template <typename Fold>
float FoldBlock(std::span<const float> x, float initial, Fold fold) {
  std::array<float, kLanes> lanes;
  lanes.fill(initial);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = fold(lanes[lane], x[i + lane]);
  }
  for (; i < x.size(); ++i) lanes[0] = fold(lanes[0], x[i]);
  for (size_t lane = 1; lane < kLanes; ++lane) lanes[0] = fold(lanes[0], lanes[lane]);
  return lanes[0];
}

float MaxOf(std::span<const float> x) {
  return FoldBlock(x, -kInfinity, [](float a, float b) { return a > b ? a : b; });
}

float SumOf(std::span<const float> x) {
  return FoldBlock(x, 0.0f, [](float a, float b) { return a + b; });
}

bool AllFinite(std::span<const float> x) {
  uint32_t bad = 0;
  for (const float v : x) bad |= (std::bit_cast<uint32_t>(v) & 0x7f800000u) == 0x7f800000u;
  return bad == 0;
}

// Ids that cannot be picked, ascending.
class Banned {
 public:
  explicit Banned(std::span<const TokenId> ids) : ids_(ids.begin(), ids.end()) {
    std::sort(ids_.begin(), ids_.end());
  }
  bool Contains(TokenId id) const { return std::binary_search(ids_.begin(), ids_.end(), id); }
  // Those in [begin, end).
  std::span<const TokenId> Within(size_t begin, size_t end) const {
    const auto first = std::lower_bound(ids_.begin(), ids_.end(), static_cast<TokenId>(begin));
    const auto last = std::lower_bound(first, ids_.end(), static_cast<TokenId>(end));
    return {first, last};
  }

 private:
  std::vector<TokenId> ids_;
};

struct Extremes {
  float max = -kInfinity;          // of all
  Candidate best{-1, -kInfinity};  // the first of the largest that are not banned; id -1: none
};

absl::StatusOr<Extremes> Scan(std::span<const float> logits, const Banned& banned) {
  Extremes out;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = Block(logits, begin);
    if (!AllFinite(block)) {
      size_t i = 0;
      while (std::isfinite(block[i])) ++i;
      return absl::DataLossError(absl::StrCat("logit ", begin + i, " of ", logits.size(), " is ",
                                              block[i], ", not a finite number"));
    }
    const float block_max = MaxOf(block);
    out.max = std::max(out.max, block_max);
    if (!(block_max > out.best.logit)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const TokenId id = static_cast<TokenId>(begin + i);
      if (block[i] > out.best.logit && !banned.Contains(id)) out.best = {id, block[i]};
    }
  }
  return out;
}

// The k candidates that come first, in order; fewer when fewer are not banned.
std::vector<Candidate> TopCandidates(std::span<const float> logits, size_t k,
                                     const Banned& banned) {
  std::vector<Candidate> heap;  // the last of the kept ones on top
  if (k == 0) return heap;
  heap.reserve(std::min(k, logits.size()));
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = Block(logits, begin);
    // Ids ascend, so an equal of the last kept one comes after it.
    if (heap.size() == k && !(MaxOf(block) > heap.front().logit)) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      const Candidate candidate{static_cast<TokenId>(begin + i), block[i]};
      if (heap.size() == k && !(candidate.logit > heap.front().logit)) continue;
      if (banned.Contains(candidate.id)) continue;
      if (heap.size() == k) {
        std::pop_heap(heap.begin(), heap.end(), Before);
        heap.pop_back();
      }
      heap.push_back(candidate);
      std::push_heap(heap.begin(), heap.end(), Before);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), Before);
  return heap;
}

// The unnormalised weights of what the cuts leave: e^((logit - max) / temperature), 0 for the rest.
class Weights {
 public:
  Weights(float max, const SamplingOptions& options)
      : max_(max), temperature_(options.temperature) {
    if (options.min_p <= 0) return;
    const double cut = max + static_cast<double>(options.temperature) *
                                 std::log(static_cast<double>(options.min_p));
    cut_ = static_cast<float>(cut);
    if (cut_ < cut) cut_ = std::nextafter(cut_, kInfinity);
  }

  // Everything after `last` weighs nothing from here on.
  void CutAfter(const Candidate& last) {
    cut_ = last.logit;
    last_of_cut_ = last.id;
  }

  // Natural logarithm of the weight that a logit has before the cuts.
  float Log(float logit) const { return (logit - max_) / temperature_; }

  float operator()(float logit) const { return SelectOrZero(logit >= cut_, Exp(Log(logit))); }

  // out: [kBlock]; banned ids weigh nothing.
  std::span<const float> OfBlock(std::span<const float> logits, size_t begin, const Banned& banned,
                                 std::array<float, kBlock>& out) const {
    const std::span<const float> block = Block(logits, begin);
    const Weights weights = *this;  // a copy that `out` cannot alias
    for (size_t i = 0; i < block.size(); ++i) out[i] = weights(block[i]);
    for (size_t i = 0; i < block.size() && begin + block.size() > last_of_cut_; ++i) {
      if (block[i] == cut_ && begin + i > last_of_cut_) out[i] = 0.0f;
    }
    for (const TokenId id : banned.Within(begin, begin + block.size())) out[id - begin] = 0.0f;
    return std::span(out).first(block.size());
  }

 private:
  float max_, temperature_;
  float cut_ = -kInfinity;
  size_t last_of_cut_ = std::numeric_limits<size_t>::max();  // of ids whose logit is cut_
};

// The candidate at the place `draw` in [0, 1) of the total weight.
TokenId DrawFromList(std::span<const Candidate> candidates, const Weights& weights, double total,
                     double draw) {
  double left = draw * total;
  TokenId last = candidates.front().id;
  for (const Candidate& candidate : candidates) {
    const double weight = weights(candidate.logit);
    if (weight == 0) continue;
    last = candidate.id;
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

// Cuts a descending list where its weights reach `goal` (not at all when they do not); returns
// what is left of them.
double CutNucleus(std::vector<Candidate>& candidates, const Weights& weights, double goal) {
  double sum = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sum += weights(candidates[i].logit);
    if (sum >= goal) {
      candidates.resize(i + 1);
      break;
    }
  }
  return sum;
}

// The weights of a whole vocabulary, summed by blocks; a draw weighs one block again.
class VocabularyDraw {
 public:
  VocabularyDraw(std::span<const float> logits, const Weights& weights, const Banned& banned)
      : logits_(logits), weights_(weights), banned_(banned) {
    for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
      sums_.push_back(SumOf(weights.OfBlock(logits, begin, banned, scratch_)));
      total_ += sums_.back();
    }
  }

  double total() const { return total_; }

  TokenId Draw(double draw) {
    double left = draw * total_;
    size_t chosen = 0;
    for (size_t block = 0; block < sums_.size(); ++block) {
      if (sums_[block] == 0) continue;
      chosen = block;
      if (left < sums_[block]) break;
      left -= sums_[block];
    }
    TokenId last = -1;
    const auto weights = weights_.OfBlock(logits_, chosen * kBlock, banned_, scratch_);
    for (size_t i = 0; i < weights.size() && left >= 0; ++i) {
      if (weights[i] == 0) continue;
      last = static_cast<TokenId>(chosen * kBlock + i);
      left -= weights[i];
    }
    return last;
  }

 private:
  std::span<const float> logits_;
  const Weights& weights_;
  const Banned& banned_;
  std::array<float, kBlock> scratch_;
  std::vector<double> sums_;  // of each block
  double total_ = 0;
};

TokenId DrawTopK(std::span<const float> logits, const SamplingOptions& options,
                 const Weights& weights, const Banned& banned, double draw) {
  std::vector<Candidate> candidates = TopCandidates(logits, options.top_k, banned);
  double total = 0;
  for (const Candidate& candidate : candidates) total += weights(candidate.logit);
  if (options.top_p < 1) total = CutNucleus(candidates, weights, options.top_p * total);
  return DrawFromList(candidates, weights, total, draw);
}

// Top-p without sorting the vocabulary: a histogram of the weights' logarithms shows in which
// bucket the sum reaches `goal`, and only that bucket is sorted.
class NucleusHistogram {
 public:
  NucleusHistogram(std::span<const float> logits, const Weights& weights, const Banned& banned)
      : logits_(logits), weights_(weights), banned_(banned) {
    ForEach([&](size_t bucket, const Candidate&, float weight) { mass_[bucket] += weight; });
  }

  // The last candidate that belongs to the nucleus; id -1 when the sum does not reach `goal`.
  Candidate Last(double goal) {
    size_t bucket = 0;
    while (bucket < kBuckets && mass_[bucket] < goal) goal -= mass_[bucket++];
    if (bucket == kBuckets) return {-1, 0};
    std::vector<Candidate> candidates;
    ForEach([&](size_t of, const Candidate& candidate, float) {
      if (of == bucket) candidates.push_back(candidate);
    });
    std::sort(candidates.begin(), candidates.end(), Before);
    CutNucleus(candidates, weights_, goal);
    return candidates.back();
  }

 private:
  static constexpr float kBucketsPerUnit = 16;
  static constexpr size_t kBuckets = static_cast<size_t>(-kLogZero * kBucketsPerUnit) + 1;

  template <typename Visit>
  void ForEach(Visit visit) {
    for (size_t begin = 0; begin < logits_.size(); begin += kBlock) {
      const auto weights = weights_.OfBlock(logits_, begin, banned_, scratch_);
      for (size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] == 0) continue;
        const Candidate candidate{static_cast<TokenId>(begin + i), logits_[begin + i]};
        const float bucket = -weights_.Log(candidate.logit) * kBucketsPerUnit;
        visit(static_cast<size_t>(bucket), candidate, weights[i]);
      }
    }
  }

  std::span<const float> logits_;
  const Weights& weights_;
  const Banned& banned_;
  std::array<float, kBlock> scratch_;
  std::array<double, kBuckets> mass_{};  // [0]: the largest weights
};

TokenId DrawAny(std::span<const float> logits, const SamplingOptions& options, Weights weights,
                const Banned& banned, double draw) {
  if (options.top_p < 1) {
    const double goal = options.top_p * VocabularyDraw(logits, weights, banned).total();
    const Candidate last = NucleusHistogram(logits, weights, banned).Last(goal);
    if (last.id >= 0) weights.CutAfter(last);
  }
  return VocabularyDraw(logits, weights, banned).Draw(draw);
}

void AddLogprobs(std::span<const float> logits, float max, int top_logprobs, Sampled& out) {
  const Banned none({});
  SamplingOptions unmodified;
  unmodified.temperature = 1;
  const double log_sum_exp =
      max + std::log(VocabularyDraw(logits, Weights(max, unmodified), none).total());
  out.logprob = static_cast<float>(logits[out.id] - log_sum_exp);
  for (const Candidate& candidate : TopCandidates(logits, top_logprobs, none)) {
    out.top.push_back({candidate.id, static_cast<float>(candidate.logit - log_sum_exp)});
  }
}

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

double UniformDraw(uint64_t seed, int64_t step) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t counter = Mix(seed + kGolden) + kGolden * (static_cast<uint64_t>(step) + 1);
  return static_cast<double>(Mix(counter) >> 11) * 0x1p-53;
}

absl::StatusOr<Sampled> Sample(std::span<const float> logits, const SamplingOptions& options,
                               int64_t step, int top_logprobs, std::span<const TokenId> banned) {
  RF_CHECK(!logits.empty());
  const Banned excluded(banned);
  RF_ASSIGN_OR_RETURN(const Extremes extremes, Scan(logits, excluded));
  if (extremes.best.id < 0) return absl::InvalidArgumentError("every token is banned");
  Sampled out;
  out.id = extremes.best.id;
  if (options.temperature > 0) {
    const Weights weights(extremes.best.logit, options);
    const double draw = UniformDraw(options.seed, step);
    const bool top_k = options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size();
    out.id = top_k ? DrawTopK(logits, options, weights, excluded, draw)
                   : DrawAny(logits, options, weights, excluded, draw);
  }
  if (top_logprobs >= 0) AddLogprobs(logits, extremes.max, top_logprobs, out);
  return out;
}

}  // namespace ringfill
