#include "engine/replay/outcome.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// Four chains, so that a row of 100,000 takes some ten microseconds.
uint64_t Digest(std::span<const float> values) {
  constexpr size_t kStep = 8;
  uint64_t lanes[4] = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + kStep <= values.size(); i += kStep) {
    uint64_t words[4];
    std::memcpy(words, values.data() + i, sizeof(words));
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = Mix(lanes[lane], words[lane]);
  }
  uint64_t hash = values.size();
  for (const uint64_t lane : lanes) hash = Mix(hash, lane);
  for (; i < values.size(); ++i) hash = Mix(hash, std::bit_cast<uint32_t>(values[i]));
  return hash;
}

LogitsRecord RecordOf(std::span<const float> logits) {
  LogitsRecord row;
  row.digest = Digest(logits);
  const auto best = std::max_element(logits.begin(), logits.end());
  row.best = static_cast<TokenId>(best - logits.begin());
  row.best_logit = *best;
  for (size_t i = 0; i < row.samples.size(); ++i) {
    row.samples[i] = logits[i * logits.size() / row.samples.size()];
  }
  return row;
}

// In units of the tolerance: over the larger magnitude, where that is above 1.
double Difference(float a, float b) {
  if (std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b)))
    return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(double{a} - double{b}) /
         std::max({1.0, std::abs(double{a}), std::abs(double{b})});
}

// Whose rows there are, in order; "sequence 3, position 118".
std::vector<std::string> RowNames(const StepPlan& plan, uint64_t stopped) {
  std::vector<std::string> names;
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan.chunks[c];
    if (!chunk.wants_logits || ((stopped >> c) & 1)) continue;
    names.push_back(absl::StrCat("sequence ", chunk.sequence, ", position ", chunk.end() - 1));
  }
  for (const DecodeToken& decode : plan.decodes) {
    names.push_back(absl::StrCat("sequence ", decode.sequence, ", position ", decode.position));
  }
  return names;
}

bool SameBits(const LogitsRecord& a, const LogitsRecord& b) {
  return a.digest == b.digest && a.best == b.best &&
         std::bit_cast<uint32_t>(a.best_logit) == std::bit_cast<uint32_t>(b.best_logit);
}

class Comparer {
 public:
  Comparer(const CompareOptions& options, Agreement& agreement)
      : options_(options), agreement_(agreement) {}

  std::optional<std::string> Row(const std::string& name, const LogitsRecord& was,
                                 const LogitsRecord& is) {
    ++agreement_.rows;
    double most = Difference(was.best_logit, is.best_logit);
    for (size_t i = 0; i < was.samples.size(); ++i) {
      most = std::max(most, Difference(was.samples[i], is.samples[i]));
    }
    agreement_.largest = std::max(agreement_.largest, most);
    if (SameBits(was, is) && most == 0) {
      ++agreement_.equal_rows;
      return std::nullopt;
    }
    const bool near = most <= options_.tolerance;
    if (!options_.strict && near) return std::nullopt;
    return absl::StrCat("logits of ", name, ": the log has token ", was.best, " first with ",
                        was.best_logit, ", the replay token ", is.best, " with ", is.best_logit,
                        options_.strict && near ? "; the bits differ" : "",
                        "; largest difference seen ", most);
  }

  std::optional<std::string> Score(const StepPlan& plan, const ScoreRecord& was,
                                   const ScoreRecord& is) {
    ++agreement_.scores;
    const double most = Difference(was.logprob, is.logprob);
    agreement_.largest = std::max(agreement_.largest, most);
    const bool same_place = std::tie(was.chunk, was.position) == std::tie(is.chunk, is.position);
    if (same_place && most == 0) {
      ++agreement_.equal_scores;
      return std::nullopt;
    }
    if (same_place && !options_.strict && most <= options_.tolerance) return std::nullopt;
    if (!same_place || was.chunk < 0 || Index(was.chunk) >= plan.chunks.size()) {
      return absl::StrCat("a score of chunk ", was.chunk, ", position ", was.position,
                          ", where the replay has chunk ", is.chunk, ", position ", is.position);
    }
    return absl::StrCat("the score of sequence ", plan.chunks[Index(was.chunk)].sequence,
                        ", position ", was.position, ": the log has ", was.logprob, ", the replay ",
                        is.logprob);
  }

 private:
  const CompareOptions& options_;
  Agreement& agreement_;
};

}  // namespace

StepRows StepRows::Of(const StepPlan& plan) {
  StepRows rows{.step = plan.step, .decodes = static_cast<int>(plan.decodes.size())};
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    if (plan.chunks[c].wants_logits) rows.chunks |= uint64_t{1} << c;
  }
  return rows;
}

OutcomeRecord OutcomeOf(const StepRows& rows, std::span<const RankStepResult> results,
                        int64_t vocab, uint64_t ignored) {
  OutcomeRecord outcome;
  outcome.step = rows.step;
  const uint64_t stopped = results.front().stopped_mask;
  outcome.stopped = stopped | ignored;
  std::vector<float> logits(Index(vocab));
  int64_t row = 0;  // of the results
  const auto add = [&](bool wanted) {
    for (const RankStepResult& result : results) {
      const int64_t n = result.vocab_end - result.vocab_begin;
      RF_CHECK(static_cast<int64_t>(result.logits.size()) >= (row + 1) * n);
      std::copy_n(result.logits.begin() + row * n, n, logits.begin() + result.vocab_begin);
    }
    if (wanted) outcome.rows.push_back(RecordOf(logits));
    ++row;
  };
  for (int c = 0; c < kMaxChunksPerStep; ++c) {
    if (((rows.chunks & ~stopped) >> c) & 1) add(!((ignored >> c) & 1));
  }
  for (int d = 0; d < rows.decodes; ++d) add(true);
  for (const RankStepResult& result : results) {
    for (const ScoredToken& score : result.scores) {
      if ((ignored >> score.chunk) & 1) continue;
      outcome.scores.push_back({score.chunk, score.position, score.logprob});
    }
  }
  std::sort(outcome.scores.begin(), outcome.scores.end(),
            [](const ScoreRecord& a, const ScoreRecord& b) {
              return std::tie(a.chunk, a.position) < std::tie(b.chunk, b.position);
            });
  return outcome;
}

std::optional<std::string> CompareOutcomes(const StepPlan& plan, const OutcomeRecord& recorded,
                                           const OutcomeRecord& replayed,
                                           const CompareOptions& options, Agreement& agreement) {
  const std::vector<std::string> names = RowNames(plan, recorded.stopped);
  if (recorded.stopped != replayed.stopped) {
    return absl::StrCat("the replay stopped the chunks ", replayed.stopped, ", the log has ",
                        recorded.stopped, " (bits)");
  }
  if (recorded.rows.size() != names.size() || replayed.rows.size() != names.size()) {
    return absl::StrCat("the log has ", recorded.rows.size(), " rows of logits, the replay ",
                        replayed.rows.size(), ", the plan wants ", names.size());
  }
  if (recorded.scores.size() != replayed.scores.size()) {
    return absl::StrCat("the log has ", recorded.scores.size(), " scores, the replay ",
                        replayed.scores.size());
  }
  Comparer comparer(options, agreement);
  std::optional<std::string> first;
  const auto note = [&first](std::optional<std::string> difference) {
    if (!first.has_value()) first = std::move(difference);
  };
  for (size_t i = 0; i < names.size(); ++i) {
    note(comparer.Row(names[i], recorded.rows[i], replayed.rows[i]));
  }
  for (size_t i = 0; i < recorded.scores.size(); ++i) {
    note(comparer.Score(plan, recorded.scores[i], replayed.scores[i]));
  }
  return first;
}

}  // namespace ringfill
