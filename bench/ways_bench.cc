// Time of prompts by every way to compute them and by the one that the cost model picks, on real
// ranks: cold, and new tokens over a cached prefix. Ways are run in turns, so that drift of the
// machine meets all of them alike. Prints a Markdown table.
//
//   ways_bench MODEL --ranks 2 --transport local
//   ways_bench MODEL --ranks 2 --transport tcp --worker build/release/server/ringfilld
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/machine.h"
#include "engine/cost/measured_chooser.h"
#include "engine/engine_options.h"
#include "engine/layout/slot_map.h"
#include "engine/schedule/scheduler.h"
#include "engine/worker/process_workers.h"
#include "engine/worker/thread_workers.h"

namespace ringfill {
namespace {

struct Options {
  std::string model;
  std::string transport = "local";
  std::string worker;  // ringfilld, for tcp
  int pairs = 7;
  int64_t cached = 8192;
  EngineOptions engine;
};

struct Setting {
  std::string name;
  int64_t cached;
  int64_t tokens;
};

// Forces one way, or leaves the choice to the cost model.
class Switch : public WayChooser {
 public:
  explicit Switch(const WayChooser& automatic) : automatic_(automatic) {}
  std::optional<Way> forced;
  Way Choose(const PrefillChunk& chunk, const PlacementSpec& placement, int ranks) const override {
    last = forced.has_value() ? *forced : automatic_.Choose(chunk, placement, ranks);
    return last;
  }
  mutable Way last;

 private:
  const WayChooser& automatic_;
};

struct Sample {
  double seconds = 0;
  double transfer_s = 0;
  double wait_s = 0;
  std::string way;
};

class Bench {
 public:
  Bench(const Options& options, const EngineInfo& info, std::shared_ptr<const Model> model,
        std::unique_ptr<Workers> workers, MeasuredChooser& measured)
      : info_(info),
        vocab_(model->config().vocab),
        workers_(std::move(workers)),
        switch_(measured),
        scheduler_(HealthySlotMap(info.ranks), info.ranks,
                   {.stripe_tokens = info.stripe_tokens,
                    .page_tokens = info.page_tokens,
                    .pages_per_rank = info.kv_pages / info.ranks,
                    .chunk_tokens = options.engine.chunk_tokens},
                   switch_) {
    prefix_ = Prompt(options.cached, 1);
  }

  // The prefix that later prompts begin with stays in the cache.
  absl::Status CachePrefix() {
    switch_.forced = Way{TokenMode::kHome, RingStrategy::kPassKv};
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.prompt = prefix_;
    return RunSequence(std::move(spec)).status();
  }

  absl::StatusOr<Sample> Run(const Setting& setting, std::optional<Way> way, uint32_t seed) {
    switch_.forced = way;
    SequenceSpec spec;
    spec.id = ++last_id_;
    if (setting.cached > 0) {
      spec.prompt = prefix_;
      spec.pages = scheduler_.SharePages(kPrefixId);
      spec.valid = scheduler_.ValidSpans(kPrefixId);
    }
    const std::vector<TokenId> fresh = Prompt(setting.tokens, seed);
    spec.prompt.insert(spec.prompt.end(), fresh.begin(), fresh.end());
    const SequenceId id = spec.id;
    RF_ASSIGN_OR_RETURN(Sample sample, RunSequence(std::move(spec)));
    scheduler_.Remove(id);
    return sample;
  }

 private:
  static constexpr SequenceId kPrefixId = 1;

  std::vector<TokenId> Prompt(int64_t tokens, uint32_t seed) const {
    std::mt19937 rng(seed);
    std::uniform_int_distribution<int> pick(0, static_cast<int>(vocab_) - 1);
    std::vector<TokenId> out(static_cast<size_t>(tokens));
    for (TokenId& id : out) id = pick(rng);
    return out;
  }

  absl::StatusOr<Sample> RunSequence(SequenceSpec spec) {
    Sample sample;
    scheduler_.Enqueue(std::move(spec));
    if (scheduler_.Admit().empty()) return absl::ResourceExhaustedError("too few KV pages");
    const Instant start = Clock::Real().Now();
    while (true) {
      StepPlan plan = scheduler_.Plan();
      if (plan.empty()) break;
      const std::vector<RankStepResult> results =
          workers_->Run(plan, {.should_stop = [](int) { return false; }, .on_layer = [](int) {}});
      for (const RankStepResult& result : results) {
        RF_RETURN_IF_ERROR(result.status);
        sample.transfer_s += result.transfer_s;
        sample.wait_s += result.prefill_wait_s;
      }
      scheduler_.Commit(plan);
    }
    sample.seconds = Seconds(Clock::Real().Now() - start);
    sample.way = WayName(switch_.last);
    return sample;
  }

  const EngineInfo info_;
  const int64_t vocab_;
  std::unique_ptr<Workers> workers_;
  Switch switch_;
  Scheduler scheduler_;
  std::vector<TokenId> prefix_;
  SequenceId last_id_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// (largest - smallest) / median.
double Spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return (*most - *least) / Median(values);
}

absl::Status RunSetting(Bench& bench, const Setting& setting, int pairs) {
  std::vector<std::optional<Way>> ways;
  for (TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
    for (RingStrategy strategy :
         {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
      ways.push_back(Way{mode, strategy});
    }
  }
  if (setting.tokens <= kMaxReplicatedTokens)
    ways.push_back(Way{TokenMode::kReplicated, RingStrategy::kPassKv});
  ways.push_back(std::nullopt);
  std::vector<std::vector<double>> seconds(ways.size());
  std::vector<Sample> last(ways.size());
  for (int i = -1; i < pairs; ++i) {
    for (size_t w = 0; w < ways.size(); ++w) {
      RF_ASSIGN_OR_RETURN(last[w], bench.Run(setting, ways[w], static_cast<uint32_t>(100 + i)));
      if (i >= 0) seconds[w].push_back(last[w].seconds);
    }
  }
  double best = Median(seconds.front());
  for (size_t w = 0; w + 1 < ways.size(); ++w) best = std::min(best, Median(seconds[w]));
  for (size_t w = 0; w < ways.size(); ++w) {
    const double hidden =
        last[w].transfer_s > 0 ? std::max(0.0, 1 - last[w].wait_s / last[w].transfer_s) : 1.0;
    const std::string name = ways[w].has_value() ? WayName(*ways[w]) : "auto: " + last[w].way;
    std::printf("| %-14s | %-20s | %8.1f | %4.1f %% | %5.2f | %3.0f %% |\n", setting.name.c_str(),
                name.c_str(), 1e3 * Median(seconds[w]), 100 * Spread(seconds[w]),
                Median(seconds[w]) / best, 100 * hidden);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Workers>> MakeWorkers(const Options& o, const WorkersSpec& spec,
                                                     const EngineInfo& info,
                                                     std::shared_ptr<const Model> model,
                                                     WorkerMetrics& metrics) {
  if (o.transport == "local") {
    ThreadWorkersOptions threads;
    threads.model = {.dtype = info.dtype,
                     .kv_dtype = info.kv_dtype,
                     .isa = o.engine.isa,
                     .page_tokens = info.page_tokens};
    return MakeThreadWorkers(spec, model, threads);
  }
  ProcessWorkersOptions processes;
  processes.dtype = info.dtype;
  processes.kv_dtype = info.kv_dtype;
  processes.isa = o.engine.isa;
  processes.page_tokens = info.page_tokens;
  processes.roster.command = {o.worker, "worker"};
  processes.roster.model_path = o.model;
  return MakeProcessWorkers(spec, *model, processes, metrics);
}

absl::Status Run(Options o) {
  RF_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, Model::Load(o.model));
  o.engine.max_context_tokens = o.cached + 8192;
  EngineInfo info;
  RF_RETURN_IF_ERROR(SettleOptions(model->config(), o.engine, info));
  const WorkersSpec spec{
      .ranks = info.ranks,
      .threads_per_rank = info.threads_per_rank,
      .spin_rounds = info.threads_per_rank * info.ranks <= UsableCores() ? kSpinRounds : 0,
      .pages_per_rank = info.kv_pages / info.ranks,
      .min_round_timeout = o.engine.min_round_timeout,
      .gather_bytes = o.engine.gather_bytes,
      .strict = false,
      .fault = nullptr,
      .clock = &Clock::Real()};
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Workers> workers,
                      MakeWorkers(o, spec, info, model, worker_metrics));
  CostOptions cost;
  cost.shape =
      ModelShape::Of(*model, static_cast<int64_t>(DTypeBytes(info.kv_dtype)), info.page_tokens);
  RF_ASSIGN_OR_RETURN(Figures figures, workers->Measure(cost.shape));
  std::printf("%d ranks x %d threads, %s, %s\n%s\n\n", info.ranks, info.threads_per_rank,
              o.transport.c_str(), std::string(DTypeName(info.dtype)).c_str(),
              DescribeFigures(figures).c_str());
  MeasuredChooser measured(cost, std::move(figures));
  Bench bench(o, info, model, std::move(workers), measured);
  RF_RETURN_IF_ERROR(bench.CachePrefix());
  std::printf(
      "| setting        | way                  |  ms (median) | spread | to best | hidden |\n");
  std::printf("|---|---|---|---|---|---|\n");
  const Setting settings[] = {
      {absl::StrFormat("cold %d", o.cached), 0, o.cached},
      {absl::StrFormat("64 over %d", o.cached), o.cached, 64},
      {absl::StrFormat("1024 over %d", o.cached), o.cached, 1024},
  };
  for (const Setting& setting : settings) RF_RETURN_IF_ERROR(RunSetting(bench, setting, o.pairs));
  return absl::OkStatus();
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  ringfill::Options o;
  o.engine.ranks = 2;
  CLI::App app(
      "Time of prompts by every way to compute them, and by the one the cost model picks.");
  app.add_option("model", o.model)->required();
  app.add_option("--ranks", o.engine.ranks);
  app.add_option("--threads", o.engine.threads);
  app.add_option("--cached", o.cached);
  app.add_option("--pairs", o.pairs);
  app.add_option("--chunk", o.engine.chunk_tokens);
  app.add_option("--transport", o.transport)->check(CLI::IsMember({"local", "tcp"}));
  app.add_option("--worker", o.worker, "ringfilld, for tcp");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = ringfill::Run(std::move(o));
  if (!status.ok()) {
    std::fprintf(stderr, "ways_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
