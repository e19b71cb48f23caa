#include "engine/sim/strategy_settings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/cost/cost_chooser.h"
#include "engine/layout/placement.h"

namespace ringfill {
namespace {

constexpr int64_t kPageTokens = 64;

// Few layers, so that the passes' own work on the host stays small; most settings have three, some
// more so that the cost model's slope over layers is held to the simulation as well.
constexpr int kFewLayers = 3;
constexpr int kMoreLayers = 9;

struct NamedShape {
  const char* name;
  ModelShape shape;
};

ModelShape Shape(int64_t width, int64_t ffn_width, int64_t heads, int64_t kv_heads,
                 int64_t head_dim, int64_t vocab, double stored_weight_bytes) {
  ModelShape shape;
  shape.layers = kFewLayers;
  shape.width = width;
  shape.ffn_width = ffn_width;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.vocab = vocab;
  shape.stored_weight_bytes = stored_weight_bytes;
  shape.page_tokens = kPageTokens;
  return shape;
}

NamedShape Small() { return {"135m", Shape(576, 1536, 9, 3, 64, 49152, 0.625)}; }
NamedShape Middle() { return {"1b", Shape(2048, 8192, 32, 8, 64, 128256, 1.0625)}; }
NamedShape Large() { return {"8b", Shape(4096, 14336, 32, 8, 128, 128256, 2)}; }
NamedShape Multihead() { return {"7b-mha", Shape(4096, 11008, 32, 32, 128, 32000, 2)}; }
NamedShape Huge() { return {"70b", Shape(8192, 28672, 64, 8, 128, 128256, 2)}; }

struct Machine {
  const char* name;
  int stripe_tokens;
  DeviceFigures figures;
};

Machine MakeMachine(const char* name, int stripe_tokens, double flops_per_s, double bytes_per_s,
                    double op_overhead_s) {
  DeviceFigures f;
  f.product_flops_per_s = flops_per_s;
  f.expand_weights_per_s = bytes_per_s / 2;
  f.large_tile = {192, 0.7 * flops_per_s};
  // One query row: two operations for each byte of keys and values.
  f.small_tile = {1, std::min(2 * bytes_per_s, 0.2 * flops_per_s)};
  f.token_bytes_per_s = 0.8 * bytes_per_s;
  f.token_flops_per_s = 0.25 * flops_per_s;
  f.copy_bytes_per_s = 0.4 * bytes_per_s;
  f.op_overhead_s = op_overhead_s;
  return {name, stripe_tokens, f};
}

Machine Core() { return MakeMachine("core", 64, 50e9, 8e9, 1e-6); }
Machine Socket() { return MakeMachine("socket", 64, 3e12, 150e9, 4e-6); }
Machine SmallGpu() { return MakeMachine("small-gpu", 128, 60e12, 300e9, 4e-6); }
Machine BigGpu() { return MakeMachine("big-gpu", 128, 600e12, 3e12, 4e-6); }

struct Links {
  const char* name;
  LinkFigures link;
  int ranks_per_node = 0;  // 0: all ranks on one
  LinkFigures uplink;
};

struct Cluster {
  Machine machine;
  Links links;
  std::vector<NamedShape> models;
};

std::vector<Cluster> Clusters() {
  const LinkFigures memory{2e-6, 8e9}, ethernet{1e-3, 0.1e9}, ethernet10{5e-5, 1.1e9},
      ethernet100{1e-5, 12e9}, pcie{5e-6, 25e9}, nvlink{5e-6, 400e9};
  return {
      {Core(), {.name = "memory", .link = memory, .uplink = {}}, {Small(), Middle()}},
      {Core(), {.name = "0.1 GB/s", .link = ethernet, .uplink = {}}, {Small()}},
      {Socket(), {.name = "1.1 GB/s", .link = ethernet10, .uplink = {}}, {Small(), Large()}},
      {Socket(), {.name = "12 GB/s", .link = ethernet100, .uplink = {}}, {Middle(), Large()}},
      {SmallGpu(), {.name = "1.1 GB/s", .link = ethernet10, .uplink = {}}, {Large()}},
      {SmallGpu(), {.name = "pcie", .link = pcie, .uplink = {}}, {Middle(), Multihead()}},
      {BigGpu(), {.name = "12 GB/s", .link = ethernet100, .uplink = {}}, {Large(), Huge()}},
      {BigGpu(), {.name = "nvlink", .link = nvlink, .uplink = {}}, {Large(), Huge()}},
      {BigGpu(),
       {.name = "nvlink, nodes of 4 at 50 GB/s",
        .link = nvlink,
        .ranks_per_node = 4,
        .uplink = {1e-5, 50e9}},
       {Multihead(), Huge()}},
  };
}

struct Prompt {
  int64_t cached;
  int64_t tokens;
};

constexpr Prompt kPrompts[] = {
    {0, 512},      {0, 2048},    {0, 8192},     {0, 32768},      {4096, 1},      {4096, 64},
    {4096, 1000},  {4096, 8192}, {65536, 1},    {65536, 16},     {65536, 200},   {65536, 2242},
    {65536, 8192}, {1 << 20, 1}, {1 << 20, 64}, {1 << 20, 1024}, {1 << 20, 8192}};
constexpr int kRankCounts[] = {2, 4, 8, 3, 1, 6, 5, 7};

std::string Tokens(int64_t n) {
  return n >= 1024 && n % 1024 == 0 ? absl::StrCat(n / 1024, "K") : absl::StrCat(n);
}

StrategySetting MakeSetting(const Cluster& cluster, const NamedShape& model, const Prompt& prompt,
                            int ranks) {
  StrategySetting setting;
  setting.model = model.name;
  setting.machine = cluster.machine.name;
  setting.links = cluster.links.name;
  setting.prompt = prompt.cached == 0
                       ? absl::StrCat(Tokens(prompt.tokens), " cold")
                       : absl::StrCat(Tokens(prompt.tokens), " new at ", Tokens(prompt.cached));
  const Links& links = cluster.links;
  SimSpec& spec = setting.spec;
  spec.shape = model.shape;
  spec.figures = links.ranks_per_node == 0
                     ? Figures::Uniform(ranks, cluster.machine.figures, links.link)
                     : Figures::OfNodes(ranks, links.ranks_per_node, cluster.machine.figures,
                                        links.link, links.uplink);
  spec.placement = {cluster.machine.stripe_tokens,
                    Placement(ranks, cluster.machine.stripe_tokens).slot_map()};
  spec.cached_tokens = prompt.cached;
  spec.chunk_tokens = {prompt.tokens};
  return setting;
}

// The last rank computes at half the speed of the others.
void SlowDown(StrategySetting& setting) {
  DeviceFigures& f = setting.spec.figures.devices.back();
  f.product_flops_per_s /= 2;
  f.large_tile.flops_per_s /= 2;
  f.small_tile.flops_per_s /= 2;
  setting.machine += ", one at half speed";
}

}  // namespace

std::string StrategySetting::Name() const {
  return absl::StrCat(model, ", ", spec.figures.ranks(), " x ", machine, ", ", links, ", ", prompt);
}

std::vector<StrategySetting> StrategySettings() {
  std::vector<StrategySetting> out;
  size_t i = 0;
  for (const Cluster& cluster : Clusters()) {
    for (const NamedShape& model : cluster.models) {
      for (const Prompt& prompt : kPrompts) {
        const bool nodes = cluster.links.ranks_per_node > 0;
        const int ranks = nodes ? 8 : kRankCounts[i % std::size(kRankCounts)];
        StrategySetting setting = MakeSetting(cluster, model, prompt, ranks);
        if (i % 7 == 0) setting.spec.shape.layers = kMoreLayers;
        if (i % 9 == 4 && ranks > 1) SlowDown(setting);
        out.push_back(std::move(setting));
        ++i;
      }
    }
  }
  return out;
}

absl::StatusOr<StrategyOutcome> CompareWays(const StrategySetting& setting) {
  const int ranks = setting.spec.figures.ranks();
  CostOptions options;
  options.shape = setting.spec.shape;
  options.gather_bytes = setting.spec.gather_bytes;
  const CostModel model(options, setting.spec.figures);
  const CostChooser chooser(model);
  const CostChooser::Explanation explained =
      chooser.Explain(FirstChunk(setting.spec), setting.spec.placement, ranks);
  StrategyOutcome outcome;
  for (const Prediction& option : explained.options) {
    SimSpec spec = setting.spec;
    spec.way = option.way;
    absl::StatusOr<SimResult> simulated = Simulate(spec);
    if (!simulated.ok()) return simulated.status();
    const size_t at = outcome.ways.size();
    outcome.ways.push_back({option.way, option.seconds, simulated->seconds});
    if (simulated->seconds < outcome.ways[outcome.best].simulated_s) outcome.best = at;
    if (option.way == explained.chosen) outcome.chosen = at;
  }
  return outcome;
}

}  // namespace ringfill
