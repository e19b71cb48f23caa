// How evenly layouts share a long prompt's tokens and causal work over the ranks, by exact counts,
// as the Markdown tables of docs/BENCHMARKS.md:
//
//   layout_balance [ranks] [tokens] [cached tokens]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "engine/layout/layouts.h"
#include "engine/layout/slot_map.h"
#include "engine/prefill/row_layout.h"

namespace ringfill {
namespace {

constexpr int kStripeTokens = 64;
constexpr int kPageTokens = 64;

// Maximum over mean, over the ranks.
struct Balance {
  double tokens = 1, work = 1;
};

double MaxOverMean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum;
}

// Of one chunk: tokens that a rank computes, and (query, key) pairs of them.
Balance BalanceOf(Layout layout, TokenMode mode, int ranks, Span span) {
  StepPlan plan;
  plan.ranks = ranks;
  plan.placements = {
      MakePlacement(layout, HealthySlotMap(ranks), kStripeTokens, kPageTokens, span.end)};
  const Placement placement(ranks, plan.placements[0]);
  PrefillChunk chunk;
  chunk.spans = {span};
  chunk.tokens.resize(static_cast<size_t>(span.size()));
  chunk.pages.resize(static_cast<size_t>(ranks));
  chunk.mode = mode;
  plan.chunks.push_back(std::move(chunk));
  const StepLayout step(plan, {&placement}, {.page_tokens = kPageTokens});
  std::vector<double> tokens, work;
  for (int r = 0; r < ranks; ++r) {
    double pairs = 0;
    for (const int64_t position : step.rows(r).position) pairs += static_cast<double>(position + 1);
    tokens.push_back(static_cast<double>(step.rows(r).rows()));
    work.push_back(pairs);
  }
  return {MaxOverMean(tokens), MaxOverMean(work)};
}

void PrintLayouts(int ranks, int64_t length) {
  std::printf("%d ranks, %lld tokens, computed at home in one chunk:\n\n", ranks,
              static_cast<long long>(length));
  std::printf("| layout | tokens, max / mean | causal work, max / mean |\n|---|---|---|\n");
  for (int i = 0; i < kLayouts; ++i) {
    const auto layout = static_cast<Layout>(i);
    const Balance balance = BalanceOf(layout, TokenMode::kHome, ranks, {0, length});
    std::printf("| %s | %.3f | %.3f |\n", std::string(LayoutName(layout)).c_str(), balance.tokens,
                balance.work);
  }
}

// The worst over all places in a page where the cached prefix may end.
Balance WorstOverResidues(TokenMode mode, int ranks, int64_t cached, int64_t tokens) {
  Balance worst;
  for (int64_t residue = 0; residue < kPageTokens; ++residue) {
    const int64_t begin = cached + residue;
    const Balance balance = BalanceOf(Layout::kSnake, mode, ranks, {begin, begin + tokens});
    worst.tokens = std::max(worst.tokens, balance.tokens);
    worst.work = std::max(worst.work, balance.work);
  }
  return worst;
}

void PrintSuffixes(int ranks, int64_t cached) {
  std::printf(
      "\nNew tokens over %lld cached ones, %d ranks, snake of %d-token stripes, the worst of "
      "all %d places in a page:\n\n",
      static_cast<long long>(cached), ranks, kStripeTokens, kPageTokens);
  std::printf("| new tokens | home: tokens | home: work | dealt: tokens | dealt: work |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const int64_t tokens : {64, 256, 1024, 2242, 4096}) {
    const Balance home = WorstOverResidues(TokenMode::kHome, ranks, cached, tokens);
    const Balance dealt = WorstOverResidues(TokenMode::kDealt, ranks, cached, tokens);
    std::printf("| %lld | %.3f | %.3f | %.3f | %.3f |\n", static_cast<long long>(tokens),
                home.tokens, home.work, dealt.tokens, dealt.work);
  }
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const int64_t length = argc > 2 ? std::atoll(argv[2]) : 32768;
  const int64_t cached = argc > 3 ? std::atoll(argv[3]) : 8192;
  if (ranks < 1 || length < 1 || cached < 0) {
    std::fprintf(stderr, "usage: %s [ranks] [tokens] [cached tokens]\n", argv[0]);
    return 2;
  }
  ringfill::PrintLayouts(ranks, length);
  ringfill::PrintSuffixes(ranks, cached);
  return 0;
}
