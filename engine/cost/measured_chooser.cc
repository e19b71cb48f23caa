#include "engine/cost/measured_chooser.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ringfill {
namespace {

DeviceFigures MeanOf(const Figures& figures, std::span<const int> ranks) {
  DeviceFigures mean = figures.devices[static_cast<size_t>(ranks.front())];
  const double n = static_cast<double>(ranks.size());
  auto average = [&](auto field) {
    double sum = 0;
    for (int rank : ranks) sum += field(figures.devices[static_cast<size_t>(rank)]);
    return sum / n;
  };
  mean.product_flops_per_s = average([](const DeviceFigures& d) { return d.product_flops_per_s; });
  mean.large_tile.flops_per_s =
      average([](const DeviceFigures& d) { return d.large_tile.flops_per_s; });
  mean.small_tile.flops_per_s =
      average([](const DeviceFigures& d) { return d.small_tile.flops_per_s; });
  mean.token_bytes_per_s = average([](const DeviceFigures& d) { return d.token_bytes_per_s; });
  return mean;
}

// The slowest link of all, which is what a newcomer's are taken for.
LinkFigures SlowestLink(const Figures& figures) {
  LinkFigures slowest = figures.links.front();
  for (int from = 0; from < figures.ranks(); ++from) {
    for (int to = 0; to < figures.ranks(); ++to) {
      if (from == to) continue;
      const LinkFigures& link = figures.Link(from, to);
      slowest.latency_s = std::max(slowest.latency_s, link.latency_s);
      slowest.bytes_per_s = std::min(slowest.bytes_per_s, link.bytes_per_s);
    }
  }
  return slowest;
}

}  // namespace

MeasuredChooser::MeasuredChooser(const CostOptions& options, Figures figures) : options_(options) {
  Use(std::move(figures));
}

void MeasuredChooser::Use(Figures figures) {
  chooser_ = nullptr;
  model_ = std::make_unique<const CostModel>(options_, std::move(figures));
  chooser_ = std::make_unique<const CostChooser>(*model_);
}

Way MeasuredChooser::Choose(const PrefillChunk& chunk, const PlacementSpec& placement,
                            int ranks) const {
  return chooser_->Choose(chunk, placement, ranks);
}

void MeasuredChooser::Regroup(std::span<const int> from) {
  const Figures& old = model_->figures();
  std::vector<int> left;
  for (int rank : from) {
    if (rank >= 0) left.push_back(rank);
  }
  // Nobody: the newcomers are all there is, and those before them all that is known.
  if (left.empty()) {
    left.resize(static_cast<size_t>(old.ranks()));
    std::iota(left.begin(), left.end(), 0);
  }
  const DeviceFigures mean = MeanOf(old, left);
  const LinkFigures slowest = SlowestLink(old);
  const auto n = static_cast<int>(from.size());
  Figures figures = Figures::Uniform(n, mean, slowest);
  figures.gather = old.gather;
  for (int a = 0; a < n; ++a) {
    const int was_a = from[static_cast<size_t>(a)];
    if (was_a < 0) continue;
    figures.devices[static_cast<size_t>(a)] = old.devices[static_cast<size_t>(was_a)];
    for (int b = 0; b < n; ++b) {
      const int was_b = from[static_cast<size_t>(b)];
      if (was_b >= 0) figures.Link(a, b) = old.Link(was_a, was_b);
    }
  }
  Use(std::move(figures));
}

std::optional<double> MeasuredChooser::PredictSeconds(const StepPlan& plan) const {
  if (plan.chunks.empty() || !plan.decodes.empty()) return std::nullopt;
  double seconds = 0;
  for (const PrefillChunk& chunk : plan.chunks) {
    const PlacementSpec& spec = plan.placements[static_cast<size_t>(chunk.placement)];
    seconds += chooser_->Predict(chunk, spec, plan.ranks).seconds;
  }
  return seconds;
}

std::string MeasuredChooser::Explain(const StepPlan& plan) const {
  std::string out;
  for (const PrefillChunk& chunk : plan.chunks) {
    const PlacementSpec& spec = plan.placements[static_cast<size_t>(chunk.placement)];
    absl::StrAppend(&out, out.empty() ? "" : "; ",
                    chooser_->Explain(chunk, spec, plan.ranks).ToString());
  }
  return out;
}

std::string DescribeFigures(const Figures& figures) {
  std::string out;
  for (int r = 0; r < figures.ranks(); ++r) {
    const DeviceFigures& d = figures.devices[static_cast<size_t>(r)];
    const LinkFigures& link = figures.Link(r, (r + 1) % figures.ranks());
    absl::StrAppendFormat(
        &out,
        "%srank %d: products %.3g FLOP/s, attention %.3g FLOP/s (one token %.3g), "
        "token products %.3g B/s, link %.3g B/s after %.3g s",
        r == 0 ? "" : "; ", r, d.product_flops_per_s, d.large_tile.flops_per_s,
        d.small_tile.flops_per_s, d.token_bytes_per_s, link.bytes_per_s, link.latency_s);
  }
  return out;
}

}  // namespace ringfill
