// Prefill and decode rates of the engine alone, in process: no gRPC, random token ids.
//
//   engine_bench MODEL.gguf [--ranks 1] [--threads 0] [--tokens 2048] [--decode 32] [--dtype auto]
//                [--isa auto] [--chunk 2048] [--expanded-bytes 0] [--repeats 3] [--backend cpu]
//                [--strategy auto]

#include <cstdio>
#include <random>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/notification.h"
#include "engine/engine.h"

namespace ringfill {
namespace {

struct Options {
  std::string model;
  EngineOptions engine;
  int64_t tokens = 2048;
  int decode = 32;
  int repeats = 3;
  int64_t warmup_tokens = 0;
  bool json = false;
  std::string dtype = "auto";
  std::string isa = "auto";
  std::string backend = "cpu";
  std::string strategy = "auto";
};

absl::Status Apply(Options& o) {
  if (o.dtype == "f32") o.engine.dtype = DType::kF32;
  if (o.dtype == "bf16") o.engine.dtype = DType::kBF16;
  for (CpuIsa isa : AvailableCpuIsas()) {
    if (o.isa == CpuIsaName(isa)) o.engine.isa = isa;
  }
  if (o.backend == "cuda") o.engine.backend = Backend::kCuda;
  for (const RingStrategy strategy :
       {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
    if (o.strategy == RingStrategyName(strategy)) o.engine.strategy = strategy;
  }
  if (o.isa != "auto" && o.isa != CpuIsaName(o.engine.isa)) {
    return absl::InvalidArgumentError("this machine does not have " + o.isa);
  }
  return absl::OkStatus();
}

absl::StatusOr<DoneEvent> RunOnce(Engine& engine, const Options& o, uint32_t seed) {
  Request request;
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int> pick(0, static_cast<int>(engine.model().config().vocab) - 1);
  for (int64_t i = 0; i < o.tokens; ++i) request.prompt.push_back(pick(rng));
  request.stop.max_tokens = o.decode;
  request.stop.ignore_eos = true;
  absl::Mutex mutex;
  bool ready = false;
  RF_ASSIGN_OR_RETURN(std::shared_ptr<Outbox> outbox, engine.Submit(std::move(request), [&] {
    absl::MutexLock lock(&mutex);
    ready = true;
  }));
  while (true) {
    if (std::optional<RequestEvent> event = outbox->TryPop()) {
      if (auto* failed = std::get_if<FailedEvent>(&*event)) return failed->status;
      if (auto* done = std::get_if<DoneEvent>(&*event)) return *done;
      continue;
    }
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&ready));
    ready = false;
  }
}

// Of the time in which the communication lanes moved bytes, the part in which their rank computed.
double HiddenShare(const EngineStatus& before, const EngineStatus& after) {
  double transfer_s = 0;
  double hidden_s = 0;
  for (size_t r = 0; r < after.ranks.size(); ++r) {
    transfer_s += after.ranks[r].transfer_s - before.ranks[r].transfer_s;
    hidden_s += after.ranks[r].hidden_s - before.ranks[r].hidden_s;
  }
  return transfer_s > 0 ? hidden_s / transfer_s : 1;
}

void Report(const Options& o, const DoneEvent& done, double hidden_share) {
  const double decode_s = done.timings.decode_ms / 1e3;
  const double decode_rate = decode_s > 0 ? (o.decode - 1) / decode_s : 0.0;
  const double rate = 1e3 * static_cast<double>(o.tokens) / done.timings.prefill_ms;
  if (o.json) {
    std::printf(
        "{\"prefill_ms\": %.3f, \"tokens_per_s\": %.1f, \"decode_per_s\": %.2f, "
        "\"hidden_share\": %.4f}\n",
        done.timings.prefill_ms, rate, decode_rate, hidden_share);
    return;
  }
  std::printf("prefill %8.1f ms %8.1f tok/s   decode %7.1f tok/s   hidden %3.0f %%   shares",
              done.timings.prefill_ms, rate, decode_rate, 100 * hidden_share);
  for (const RankShare& share : done.ranks) {
    std::printf("  %.0f/%.0f", share.busy_ms, share.wait_ms);
  }
  std::printf("\n");
}

absl::Status Run(Options o) {
  RF_RETURN_IF_ERROR(Apply(o));
  RF_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, Model::Load(o.model));
  RF_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                      Tokenizer::FromGguf(model->file()));
  o.engine.max_context_tokens =
      std::max<int64_t>(model->config().trained_context, o.tokens + o.decode);
  Metrics metrics;
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                      Engine::Create(o.engine, model, tokenizer, metrics));
  const EngineInfo& info = engine->info();
  std::printf("ranks %d x %d threads, %s, kernel %s\n", info.ranks, info.threads_per_rank,
              std::string(DTypeName(info.dtype)).c_str(), info.attention_kernel.c_str());
  if (o.warmup_tokens > 0) {
    Options warmup = o;
    warmup.tokens = o.warmup_tokens;
    RF_RETURN_IF_ERROR(RunOnce(*engine, warmup, 1000).status());
  }
  for (int i = 0; i < o.repeats; ++i) {
    const EngineStatus before = engine->Status();
    RF_ASSIGN_OR_RETURN(DoneEvent done, RunOnce(*engine, o, static_cast<uint32_t>(i)));
    Report(o, done, HiddenShare(before, engine->Status()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  ringfill::Options o;
  CLI::App app("Prefill and decode rates of the engine alone.");
  app.add_option("model", o.model)->required();
  app.add_option("--ranks", o.engine.ranks);
  app.add_option("--threads", o.engine.threads);
  app.add_option("--tokens", o.tokens);
  app.add_option("--decode", o.decode);
  app.add_option("--dtype", o.dtype, "auto, f32 or bf16");
  app.add_option("--isa", o.isa, "auto, baseline, avx2, avx512 or avx512_bf16");
  app.add_option("--backend", o.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--strategy", o.strategy, "auto, or one of ring.strategy");
  app.add_option("--chunk", o.engine.chunk_tokens);
  app.add_option("--expanded-bytes", o.engine.expanded_weight_bytes);
  app.add_option("--repeats", o.repeats);
  app.add_option("--warmup-tokens", o.warmup_tokens, "a prompt before the first; 0: none");
  app.add_flag("--json", o.json, "one JSON object a repeat");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = ringfill::Run(o);
  if (!status.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
