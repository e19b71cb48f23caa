#include <math.h>

#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/block_reduce.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/sampling.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

using Key = unsigned long long;
using Mass = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kDigits = 256;
constexpr unsigned kIdMask = 0xffffffu;
constexpr float kUnit = 1099511627776.0f;  // 2^40

// Shared memory of a block.
struct Scratch {
  Mass* histogram;  // [kDigits]
  Mass* reduce;     // [kWarps]
  Mass* found;      // [2]: a bucket, and what of the target is left for it
};

// Orders as floats do, -0 as 0.
RF_DEVICE unsigned Ordered(float v) {
  v += 0.0f;
  union {
    float value;
    unsigned bits;
  } u;
  u.value = v;
  return (u.bits & 0x80000000u) != 0 ? ~u.bits : u.bits | 0x80000000u;
}

RF_DEVICE int IdOf(Key key) { return static_cast<int>(kIdMask - (key & kIdMask)); }

// A larger logit has the larger key, among equals the lower id. The highest digit is the distance
// from `max` in steps of 1/8, which spreads a vocabulary's logits over the first histogram.
RF_DEVICE Key KeyOf(float logit, int id, float max) {
  const float steps = (max - logit) * 8.0f;
  const unsigned near = steps < 255.0f ? 255u - static_cast<unsigned>(steps) : 0u;
  return static_cast<Key>(near) << 56 | static_cast<Key>(Ordered(logit)) << 24 |
         (kIdMask - static_cast<unsigned>(id));
}

// What still takes part, and what it weighs.
struct Candidates {
  const float* logits;
  int vocab;
  float max;        // of those not banned
  float sharpness;  // 1 / temperature
  float least_logit;
  Key least;

  RF_DEVICE bool Has(int id) const {
    const float logit = logits[id];
    return logit > -kInfinity && logit >= least_logit && KeyOf(logit, id, max) >= least;
  }
  RF_DEVICE Mass Weight(int id) const {
    if (!Has(id)) return 0;
    return static_cast<Mass>(expf((logits[id] - max) * sharpness) * kUnit);
  }
};

struct CountOf {
  Candidates candidates;
  RF_DEVICE Mass operator()(int id) const { return candidates.Has(id) ? 1 : 0; }
};
struct WeightOf {
  Candidates candidates;
  RF_DEVICE Mass operator()(int id) const { return candidates.Weight(id); }
};

RF_DEVICE void ClearHistogram(const Scratch& scratch) {
  for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
    scratch.histogram[i] = 0;
  }
  SyncThreads();
}

// The first bucket at which the running sum reaches `target`, which becomes what is left of it
// there; the last one that is not empty when the sum stays below. REQUIRES: target > 0.
RF_DEVICE int FindBucket(const Scratch& scratch, Mass& target) {
  constexpr int kEach = kDigits / kWarpLanes;
  SyncThreads();
  if (WarpId() == 0) {
    Mass sum = 0;
    for (int i = 0; i < kEach; ++i) sum += scratch.histogram[LaneId() * kEach + i];
    Mass upto = sum;
    for (int lanes = 1; lanes < kWarpLanes; lanes *= 2) {
      const Mass below = ShuffleUp(upto, lanes);
      if (LaneId() >= lanes) upto += below;
    }
    const Mass total = Shuffle(upto, kWarpLanes - 1);
    const Mass goal = target < total ? target : total;
    // One lane alone passes the goal.
    if (upto >= goal && upto - sum < goal) {
      Mass left = goal - (upto - sum);
      int bucket = LaneId() * kEach;
      while (scratch.histogram[bucket] < left) left -= scratch.histogram[bucket++];
      scratch.found[0] = static_cast<Mass>(bucket);
      scratch.found[1] = left;
    }
  }
  SyncThreads();
  target = scratch.found[1];
  return static_cast<int>(scratch.found[0]);
}

// Walks down the candidates by key until the sum of their measures reaches `target`; the key of the
// one where it does. Eight bits of the key a pass.
template <typename Measure>
RF_DEVICE Key Descend(const Candidates& candidates, const Measure& measure, Mass target,
                      const Scratch& scratch) {
  Key prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    ClearHistogram(scratch);
    for (int id = static_cast<int>(threadIdx.x); id < candidates.vocab; id += kThreads) {
      const Key key = KeyOf(candidates.logits[id], id, candidates.max);
      if (shift < 56 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
      const Mass mass = measure(id);
      if (mass != 0) AtomicAdd(scratch.histogram + (255 - (key >> shift & 255)), mass);
    }
    const int bucket = FindBucket(scratch, target);
    prefix |= static_cast<Key>(255 - bucket) << shift;
  }
  return prefix;
}

// The id at which the sum of weights in order of ids reaches `target`.
RF_DEVICE int WalkIds(const Candidates& candidates, Mass target, const Scratch& scratch) {
  int first = 0, end = candidates.vocab;
  for (int shift = 16; shift >= 0; shift -= 8) {
    ClearHistogram(scratch);
    for (int base = first + WarpId() * kWarpLanes; base < end; base += kThreads) {
      const int id = base + LaneId();
      Mass mass = id < end ? candidates.Weight(id) : 0;
      if (shift > 0) {
        // A warp's ids share their bucket.
        for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) mass += ShuffleXor(mass, lanes);
        if (LaneId() != 0) mass = 0;
      }
      if (mass != 0) AtomicAdd(scratch.histogram + (id >> shift & 255), mass);
    }
    first += FindBucket(scratch, target) << shift;
    end = first + (1 << shift) < candidates.vocab ? first + (1 << shift) : candidates.vocab;
  }
  return first;
}

RF_DEVICE Mass TotalWeight(const Candidates& candidates, const Scratch& scratch) {
  Mass sum = 0;
  for (int id = static_cast<int>(threadIdx.x); id < candidates.vocab; id += kThreads) {
    sum += candidates.Weight(id);
  }
  return BlockReduce<kThreads>(sum, SumOp(), scratch.reduce);
}

// Ordered(logit) and id of the largest that is above -inf; 0 when there is none.
RF_DEVICE Key Largest(const float* logits, int vocab, const Scratch& scratch) {
  Key best = 0;
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads) {
    if (!(logits[id] > -kInfinity)) continue;
    const Key key =
        static_cast<Key>(Ordered(logits[id])) << 24 | (kIdMask - static_cast<unsigned>(id));
    best = key > best ? key : best;
  }
  return BlockReduce<kThreads>(best, MaxOp(), scratch.reduce);
}

// The first id whose logit is not finite, `vocab` when there is none.
RF_DEVICE int FirstNotFinite(const float* logits, int vocab, const Scratch& scratch) {
  Mass first = kIdMask - static_cast<unsigned>(vocab);
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads) {
    if (IsFinite(logits[id])) continue;
    first = kIdMask - static_cast<unsigned>(id);
    break;
  }
  return static_cast<int>(kIdMask - BlockReduce<kThreads>(first, MaxOp(), scratch.reduce));
}

RF_DEVICE void Adjust(const SampleArgs& args, const SampleRow& row, float* logits, bool restore) {
  for (int i = static_cast<int>(threadIdx.x); i < row.adjustments; i += kThreads) {
    LogitAdjustment& adjustment = args.adjustments[row.first_adjustment + i];
    float* const logit = logits + adjustment.id;
    if (restore) {
      *logit = adjustment.raw;
      continue;
    }
    float v = *logit;
    adjustment.raw = v;
    if (adjustment.count == LogitAdjustment::kBanned) {
      v = -kInfinity;
    } else if (adjustment.count > 0) {
      v = v > 0.0f ? v / row.repetition : v * row.repetition;
      v -= static_cast<float>(adjustment.count) * row.frequency;
      v -= row.presence;
    }
    *logit = v;
  }
  SyncThreads();
}

// The lowest logit that min_p leaves.
RF_DEVICE float MinPCut(const SampleRow& row, float max) {
  if (row.min_p <= 0.0f) return -kInfinity;
  const double cut = static_cast<double>(max) +
                     static_cast<double>(row.temperature) * log(static_cast<double>(row.min_p));
  const float rounded = static_cast<float>(cut);
  return static_cast<double>(rounded) < cut ? nextafterf(rounded, kInfinity) : rounded;
}

RF_DEVICE int Pick(const float* logits, int vocab, const SampleRow& row, Key best,
                   const Scratch& scratch) {
  const int greedy = IdOf(best);
  if (row.temperature <= 0.0f) return greedy;
  Candidates candidates = {logits, vocab, logits[greedy], 1.0f / row.temperature, -kInfinity, 0};
  const bool top_k = row.top_k > 0 && row.top_k < vocab;
  if (top_k) {
    candidates.least =
        Descend(candidates, CountOf{candidates}, static_cast<Mass>(row.top_k), scratch);
  }
  candidates.least_logit = MinPCut(row, candidates.max);
  Mass total = TotalWeight(candidates, scratch);
  if (row.top_p < 1.0f) {
    const double goal = ceil(static_cast<double>(row.top_p) * static_cast<double>(total));
    const Mass target = goal >= 1.0 ? static_cast<Mass>(goal) : 1;
    candidates.least = Descend(candidates, WeightOf{candidates}, target, scratch);
    total = TotalWeight(candidates, scratch);
  }
  const Mass target = static_cast<Mass>(row.draw * static_cast<double>(total)) + 1;
  if (top_k) return IdOf(Descend(candidates, WeightOf{candidates}, target, scratch));
  return WalkIds(candidates, target, scratch);
}

// log(sum of e^logit) and the most likely tokens, of logits as they came.
RF_DEVICE double ListLikely(const float* logits, int vocab, int top, const Scratch& scratch,
                            Key* keys, unsigned* count, SampledToken& out) {
  const int best = IdOf(Largest(logits, vocab, scratch));
  Candidates candidates = {logits, vocab, logits[best], 1.0f, -kInfinity, 0};
  const Mass total = TotalWeight(candidates, scratch);
  const double log_sum_exp = static_cast<double>(candidates.max) +
                             log(static_cast<double>(total) / static_cast<double>(kUnit));
  top = top < kMaxTopLogprobs ? top : kMaxTopLogprobs;
  top = top < vocab ? top : vocab;
  if (threadIdx.x == 0) {
    *count = 0;
    out.top = top;
  }
  if (top == 0) return log_sum_exp;
  candidates.least = Descend(candidates, CountOf{candidates}, static_cast<Mass>(top), scratch);
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads) {
    if (!candidates.Has(id)) continue;
    keys[AtomicAdd(count, 1u)] = KeyOf(logits[id], id, candidates.max);
  }
  SyncThreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < top) {
    const Key mine = keys[i];
    int rank = 0;
    for (int other = 0; other < top; ++other) rank += keys[other] > mine ? 1 : 0;
    out.top_id[rank] = IdOf(mine);
    out.top_logprob[rank] = static_cast<float>(logits[IdOf(mine)] - log_sum_exp);
  }
  return log_sum_exp;
}

// A block samples a row; one a multiprocessor is enough, so registers need not be spared.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads, 1) void SampleKernel(SampleArgs args) {
  RF_SHARED(Mass, histogram, kDigits);
  RF_SHARED(Mass, reduce, kWarps);
  RF_SHARED(Mass, found, 2);
  RF_SHARED(Key, keys, kMaxTopLogprobs);
  RF_SHARED(unsigned, count, 1);
  const Scratch scratch = {histogram, reduce, found};
  const SampleRow row = args.row[blockIdx.x];
  float* const logits = args.logits + blockIdx.x * args.vocab;
  const int vocab = static_cast<int>(args.vocab);
  SampledToken& out = args.out[blockIdx.x];
  const bool first = threadIdx.x == 0;
  const int not_finite = FirstNotFinite(logits, vocab, scratch);
  if (not_finite < vocab) {
    if (first) {
      out.status = SampleStatus::kNotFinite;
      out.id = not_finite;
      out.top = 0;
    }
    return;
  }
  double log_sum_exp = 0.0;
  if (row.top_logprobs >= 0) {
    log_sum_exp = ListLikely(logits, vocab, row.top_logprobs, scratch, keys, count, out);
  } else if (first) {
    out.top = 0;
  }
  // Nobody reads the logits as they came any more.
  SyncThreads();
  Adjust(args, row, logits, false);
  const Key best = Largest(logits, vocab, scratch);
  int id = -1;
  if (best != 0) id = Pick(logits, vocab, row, best, scratch);
  // Whoever read logits above has come to a barrier since.
  Adjust(args, row, logits, true);
  if (!first) return;
  out.status = best != 0 ? SampleStatus::kOk : SampleStatus::kAllBanned;
  out.id = id;
  out.logprob =
      id >= 0 && row.top_logprobs >= 0 ? static_cast<float>(logits[id] - log_sum_exp) : 0.0f;
}

constexpr int kScoreThreads = 256;

// A block adds its part of the vocabulary to a row.
RF_KERNEL RF_LAUNCH_BOUNDS(kScoreThreads) void ScoreBlockKernel(ScoreArgs args) {
  RF_SHARED(float, maxima, kScoreThreads / kWarpLanes);
  RF_SHARED(double, sums, kScoreThreads / kWarpLanes);
  const int64_t row = blockIdx.x;
  const float* const logits = args.logits + row * args.count;
  float max = -kInfinity;
  for (int64_t i = threadIdx.x; i < args.count; i += kScoreThreads) max = fmaxf(max, logits[i]);
  max = BlockReduce<kScoreThreads>(max, MaxOp(), maxima);
  const float base = max == -kInfinity ? 0.0f : max;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < args.count; i += kScoreThreads) {
    sum += static_cast<double>(expf(logits[i] - base));
  }
  sum = BlockReduce<kScoreThreads>(sum, SumOp(), sums);
  if (threadIdx.x != 0) return;
  ScoreState state = {0.0, -kInfinity, 0.0f};
  if (args.begin != 0) state = args.state[row];
  const float merged = fmaxf(state.max, max);
  // What has sum 0 has seen nothing but -inf.
  double total = 0.0;
  if (state.sum != 0.0) total = state.sum * exp(static_cast<double>(state.max) - merged);
  if (sum != 0.0) total += sum * exp(static_cast<double>(max) - merged);
  state.sum = total;
  state.max = merged;
  const int64_t target = args.target[row] - args.begin;
  if (target >= 0 && target < args.count) state.target_logit = logits[target];
  args.state[row] = state;
}

RF_KERNEL RF_LAUNCH_BOUNDS(kScoreThreads) void FinishScoresKernel(const ScoreState* state,
                                                                  int64_t rows, float* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kScoreThreads + threadIdx.x;
  if (row >= rows) return;
  const ScoreState s = state[row];
  out[row] = static_cast<float>(static_cast<double>(s.target_logit) - s.max - log(s.sum));
}

}  // namespace

int SampleTokens(const SampleArgs& args, KernelStream stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.vocab <= 0 || args.vocab > kMaxSampledVocab) return cudaErrorInvalidValue;
  return Launch(SampleKernel, BlocksOf(args.rows, 1), dim3(kThreads), 0, stream, args);
}

int ScoreBlock(const ScoreArgs& args, KernelStream stream) {
  if (args.rows == 0) return cudaSuccess;
  return Launch(ScoreBlockKernel, BlocksOf(args.rows, 1), dim3(kScoreThreads), 0, stream, args);
}

int FinishScores(const ScoreState* state, int64_t rows, float* out, KernelStream stream) {
  if (rows == 0) return cudaSuccess;
  return Launch(FinishScoresKernel, BlocksOf(rows, kScoreThreads), dim3(kScoreThreads), 0, stream,
                state, rows, out);
}

}  // namespace ringfill::gpu
