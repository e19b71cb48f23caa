// Prints, as a Markdown table, how each setting of strategy_settings.h comes out in simulated time:
// the fastest way, what the cost model picks and how much that costs, and how far its predictions
// are off. With --timeline TEXT, the ring of the first setting whose name has TEXT in it, as text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "engine/cost/cost_chooser.h"
#include "engine/sim/strategy_settings.h"

namespace ringfill {
namespace {

constexpr int kTimelineColumns = 100;

// What a span shows as.
char Mark(const TraceSpan& span) {
  switch (span.label.kind) {
    case OpKind::kAttend:
    case OpKind::kTokenAttend:
      return static_cast<char>('0' + std::max(0, span.label.round) % 10);
    case OpKind::kLayers:
    case OpKind::kTokenQkv:
    case OpKind::kTokenOutput:
    case OpKind::kTokenFfn:
      return '#';
    case OpKind::kExchange:
      return '>';
    case OpKind::kAllGather:
      return '*';
    default:
      return '+';
  }
}

void PrintTimeline(const StrategySetting& setting, const StrategyOutcome& outcome) {
  SimSpec spec = setting.spec;
  spec.way = outcome.ways[outcome.chosen].way;
  spec.trace = true;
  const absl::StatusOr<SimResult> result = Simulate(spec);
  if (!result.ok()) return;
  std::printf("%s, %s: %.6g s, %.0f %% of communication hidden\n", setting.Name().c_str(),
              WayName(spec.way).c_str(), result->seconds, 100 * result->hidden_share);
  std::printf(
      "(# products, 0-9 attention of a round, + small operations, > exchange, "
      "* all-gather)\n");
  for (size_t r = 0; r < result->ranks.size(); ++r) {
    std::string lanes[2] = {std::string(kTimelineColumns, '.'), std::string(kTimelineColumns, '.')};
    for (const TraceSpan& span : result->ranks[r].trace) {
      auto column = [&](Instant at) {
        const double share = Seconds(at.time_since_epoch()) / result->seconds;
        return std::clamp(static_cast<int>(share * kTimelineColumns), 0, kTimelineColumns - 1);
      };
      std::string& lane = lanes[static_cast<size_t>(span.lane)];
      for (int c = column(span.begin); c <= column(span.end); ++c) {
        char& at = lane[static_cast<size_t>(c)];
        if (at == '.' || Mark(span) != '+') at = Mark(span);
      }
    }
    std::printf("rank %zu compute %s\n       comm    %s\n", r, lanes[0].c_str(), lanes[1].c_str());
  }
}

int Run(const std::string& timeline) {
  if (timeline.empty()) {
    std::printf("| setting | best | s | auto | auto/best | predicted/simulated |\n");
    std::printf("|---|---|---|---|---|---|\n");
  }
  double worst_excess = 1, worst_error = 0;
  for (const StrategySetting& setting : StrategySettings()) {
    if (setting.Name().find(timeline) == std::string::npos) continue;
    const absl::StatusOr<StrategyOutcome> outcome = CompareWays(setting);
    if (!outcome.ok()) {
      std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
      return 1;
    }
    if (!timeline.empty()) {
      PrintTimeline(setting, *outcome);
      return 0;
    }
    double low = 1e9, high = 0;
    for (const WayOutcome& way : outcome->ways) {
      low = std::min(low, way.predicted_s / way.simulated_s);
      high = std::max(high, way.predicted_s / way.simulated_s);
    }
    worst_error = std::max({worst_error, high - 1, 1 - low});
    worst_excess = std::max(worst_excess, outcome->Excess());
    const WayOutcome& best = outcome->ways[outcome->best];
    std::printf("| %s | %s | %.3g | %s | %.3f | %.3f to %.3f |\n", setting.Name().c_str(),
                WayName(best.way).c_str(), best.simulated_s,
                WayName(outcome->ways[outcome->chosen].way).c_str(), outcome->Excess(), low, high);
  }
  if (!timeline.empty()) {
    std::fprintf(stderr, "no such setting\n");
    return 1;
  }
  std::printf("\nauto is at most %.1f %% over the best, predictions are at most %.1f %% off\n",
              100 * (worst_excess - 1), 100 * worst_error);
  return 0;
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  CLI::App app{"Compares the ways to compute a chunk in simulated time"};
  std::string timeline;
  app.add_option("--timeline", timeline, "Text in the name of the setting to draw");
  CLI11_PARSE(app, argc, argv);
  return ringfill::Run(timeline);
}
