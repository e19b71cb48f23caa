#include <algorithm>
#include <limits>

#include "server/app/config.h"
#include "server/text.h"

namespace ringfill {
namespace {

constexpr double kMaxBytes = static_cast<double>(int64_t{1} << 50);
constexpr double kDaySeconds = 86400;

ConfigKey Key(std::string_view name, ConfigKind kind, std::string_view default_text,
              std::string_view description) {
  ConfigKey key;
  key.name = name;
  key.kind = kind;
  key.default_text = default_text;
  key.description = description;
  return key;
}

ConfigKey Integer(std::string_view name, std::string_view default_text, int64_t Config::*field,
                  double min, double max, std::string_view description) {
  ConfigKey key = Key(name, ConfigKind::kInteger, default_text, description);
  key.field = field;
  key.min = min;
  key.max = max;
  return key;
}

ConfigKey Tokens(std::string_view name, std::string_view default_text, int64_t Config::*field,
                 double min, double max, int64_t multiple_of, std::string_view description) {
  ConfigKey key = Integer(name, default_text, field, min, max, description);
  key.multiple_of = multiple_of;
  return key;
}

ConfigKey Bytes(std::string_view name, std::string_view default_text, int64_t Config::*field,
                double min, double max, std::string_view description) {
  ConfigKey key = Integer(name, default_text, field, min, max, description);
  key.kind = ConfigKind::kBytes;
  return key;
}

ConfigKey Duration(std::string_view name, std::string_view default_text, double Config::*field,
                   double min, std::string_view description) {
  ConfigKey key = Key(name, ConfigKind::kSeconds, default_text, description);
  key.field = field;
  key.min = min;
  key.max = kDaySeconds;
  return key;
}

ConfigKey Fraction(std::string_view name, std::string_view default_text, double Config::*field,
                   double min, double max, std::string_view description) {
  ConfigKey key = Key(name, ConfigKind::kFraction, default_text, description);
  key.field = field;
  key.min = min;
  key.max = max;
  return key;
}

ConfigKey Text(std::string_view name, ConfigKind kind, std::string_view default_text,
               std::string Config::*field, std::string_view description) {
  ConfigKey key = Key(name, kind, default_text, description);
  key.field = field;
  return key;
}

ConfigKey Bool(std::string_view name, bool Config::*field, std::string_view default_text,
               std::string_view description) {
  ConfigKey key = Key(name, ConfigKind::kBool, default_text, description);
  key.field = field;
  return key;
}

ConfigKey Choice(std::string_view name, std::string Config::*field,
                 std::vector<std::string_view> choices, std::string_view default_text,
                 std::string_view description) {
  ConfigKey key = Text(name, ConfigKind::kChoice, default_text, field, description);
  key.choices = std::move(choices);
  return key;
}

std::vector<ConfigKey> ServerKeys() {
  std::vector<ConfigKey> keys = {
      Text("server.listen", ConfigKind::kAddress, "127.0.0.1:50051", &Config::server_listen,
           "Address of the gRPC API. There is no authentication: other than loopback only behind "
           "a proxy."),
      Bytes("server.max_message_bytes", "64MiB", &Config::server_max_message_bytes, 65536,
            std::numeric_limits<int32_t>::max(),
            "Largest request message. 4 million token ids or their text are about 20 MB."),
      Integer("server.max_concurrent_streams", "256", &Config::server_max_concurrent_streams, 1,
              65536, "Calls in progress on one connection; more wait in the client."),
      Duration("server.drain_timeout_s", "30", &Config::server_drain_timeout_s, 0,
               "After SIGTERM, seconds that running requests get to finish."),
      Duration("server.slow_client_timeout_s", "60", &Config::server_slow_client_timeout_s, 0.1,
               "Seconds after which a client that does not read its stream is cancelled."),
      Integer("server.outbox_events", "256", &Config::server_outbox_events, 1, 65536,
              "Tokens that wait for a slow client before its request pauses."),
      Text("metrics.listen", ConfigKind::kAddress, "127.0.0.1:9464", &Config::metrics_listen,
           "Address of the Prometheus endpoint (/metrics), an IP address or localhost; \"\" "
           "switches it off."),
      Choice("log.level", &Config::log_level, {"debug", "info", "warning", "error"}, "info",
             "Least level of the JSON lines on stderr."),
  };
  keys[6].may_be_empty = true;
  return keys;
}

std::vector<ConfigKey> ModelKeys() {
  return {
      Text("model.path", ConfigKind::kText, "", &Config::model_path,
           "GGUF file. A leading ~ and ${NAME} are expanded; relative to the working directory."),
      Tokens("model.max_context_tokens", "0", &Config::model_max_context_tokens, 0, 1 << 24, 1,
             "Prompt plus generated tokens of one request; 0 is the model's own limit."),
      Integer("ranks.count", "1", &Config::ranks_count, 1, 64,
              "Ranks in the ring: each computes and keeps its share of every sequence."),
      Choice("ranks.backend", &Config::ranks_backend, {"auto", "cpu", "cuda"}, "auto",
             "What ranks compute on: the CPU or a GPU each; auto is GPUs where they can be used, "
             "else the CPU with a warning. With ring.transport processes auto is the CPU."),
      Text("ranks.devices", ConfigKind::kGpus, "", &Config::ranks_devices,
           "GPUs of the ranks, in rank order (0,1,3); \"\" takes the first ones. Workers that are "
           "started elsewhere have --device."),
      Text("ranks.weights", ConfigKind::kWeights, "", &Config::ranks_weights,
           "Share of each rank, in rank order (2,1,1: the first does half); \"\" is even, auto "
           "measures their speed at start."),
      Choice("compute.dtype", &Config::compute_dtype, {"auto", "f32", "bf16"}, "auto",
             "Arithmetic of the products; auto is bf16 where the CPU has it, else f32."),
      Integer("compute.threads", "0", &Config::compute_threads, 0, 1024,
              "Compute threads over all ranks; 0 is one a core."),
      Choice("compute.isa", &Config::compute_isa,
             {"auto", "baseline", "avx2", "avx512", "avx512_bf16"}, "auto",
             "Instruction set of attention and few-row products; auto is the best the CPU has. The "
             "rest follows the CPU, oneDNN's products also ONEDNN_MAX_CPU_ISA."),
      Choice(
          "compute.numerics", &Config::compute_numerics, {"fast", "strict"}, "fast",
          "strict gives equal bits whatever the ranks, the neighbours and the chunks, slower; it "
          "fixes how prompts are computed."),
      Bytes("compute.expanded_weight_bytes", "0", &Config::compute_expanded_weight_bytes, 0,
            kMaxBytes, "Memory for weights kept expanded; 0 is two layers."),
  };
}

std::vector<ConfigKey> CacheKeys() {
  return {
      Choice("kv.dtype", &Config::kv_dtype, {"auto", "f32", "bf16"}, "auto",
             "Type of stored keys and values; auto follows compute.dtype."),
      Tokens("kv.page_tokens", "64", &Config::kv_page_tokens, 16, 256, 16, "Tokens of a KV page."),
      Bytes("kv.memory_bytes", "0", &Config::kv_memory_bytes, 0, kMaxBytes,
            "KV memory over all ranks (2GiB, or decimal 2GB); 0 is four full contexts and a page a "
            "rank for each request that may run, at most a quarter of the memory; on GPUs by "
            "kv.memory_fraction."),
      Fraction("kv.memory_fraction", "0.9", &Config::kv_memory_fraction, 0.05, 0.98,
               "On GPUs, when kv.memory_bytes is 0: the part for KV of the memory that weights, "
               "scratch and libraries leave; the rest is for what an estimate of those misses."),
      Tokens("kv.decode_reserve", "256", &Config::kv_decode_reserve, 0, 1 << 20, 1,
             "Tokens reserved beyond the prompt at admission (at most max_tokens of the request)."),
      Choice("sharding.layout", &Config::sharding_layout,
             {"snake", "contiguous", "zigzag", "token-stripes"}, "snake",
             "How stripes are dealt to ranks; the others than snake are there to compare with."),
      Tokens("sharding.stripe_tokens", "64", &Config::sharding_stripe_tokens, 16, 65536, 16,
             "Tokens of a stripe, the unit dealt to ranks; a multiple of kv.page_tokens."),
      Tokens("prefill.chunk_tokens", "2048", &Config::prefill_chunk_tokens, 16, 1 << 22, 1,
             "Prompt tokens of one step over all ranks."),
      Integer("scheduler.max_queued_requests", "64", &Config::scheduler_max_queued_requests, 1,
              65536, "Requests that may wait; more are refused with RESOURCE_EXHAUSTED."),
      Integer("scheduler.max_running_requests", "64", &Config::scheduler_max_running_requests, 1,
              256, "Requests served at the same time."),
  };
}

std::vector<ConfigKey> RingKeys() {
  return {
      Choice("ring.strategy", &Config::ring_strategy, {"auto", "pass-kv", "gather-kv", "pass-q"},
             "auto",
             "How ranks meet each other's keys and values; auto is the fastest of each step, by a "
             "cost model fed with figures measured at start."),
      Choice("ring.mode", &Config::ring_mode, {"auto", "home", "dealt", "replicated"}, "auto",
             "Who computes a prompt's tokens: the rank that keeps them, all ranks evenly, or each "
             "rank all tokens with a part of the weights. auto chooses as ring.strategy does."),
      Bytes("ring.gather_bytes", "256MiB", &Config::ring_gather_bytes, 0, kMaxBytes,
            "Most memory that gather-kv may take on a rank for one layer."),
      Integer("ring.min_round_timeout_ms", "30000", &Config::ring_min_round_timeout_ms, 10, 3.6e6,
              "Least milliseconds that a rank waits for a peer before the step fails."),
      Choice("ring.transport", &Config::ring_transport, {"threads", "processes"}, "threads",
             "Ranks as threads of the daemon, or as processes that speak TCP, or NCCL on GPUs."),
      Text("ring.listen", ConfigKind::kAddress, "127.0.0.1:0", &Config::ring_listen,
           "With ring.transport processes: where the daemon awaits its workers."),
      Text("ring.secret_file", ConfigKind::kText, "", &Config::ring_secret_file,
           "File with the secret that workers must know; \"\" makes one at start for workers on "
           "this host. A leading ~ and ${NAME} are expanded."),
      Bool("ring.start_workers", &Config::ring_start_workers, "true",
           "Start the worker processes here; false awaits those that are started elsewhere with "
           "ringfilld worker --leader HOST:PORT --rank K."),
      Duration("ring.join_timeout_s", "60", &Config::ring_join_timeout_s, 0.1,
               "Seconds that all workers get to join at start, and one that is started anew later; "
               "and that "
               "one started by hand goes on calling a daemon that is not there."),
      Duration(
          "ring.max_restart_pause_s", "30", &Config::ring_max_restart_pause_s, 0,
          "Most seconds before a lost worker process is started anew: 1 at first, doubling with "
          "each loss until one has been well for a minute."),
      Duration("ring.heartbeat_timeout_s", "3", &Config::ring_heartbeat_timeout_s, 1,
               "Seconds of silence after which a worker process, its daemon, or the link between "
               "two workers is taken for gone."),
  };
}

std::vector<ConfigKey> TraceKeys() {
  return {
      Text("trace.path", ConfigKind::kText, "", &Config::trace_path,
           "File for what every rank does, as JSON that ui.perfetto.dev shows, from the start of "
           "the daemon on; \"\" is off. It replaces an older trace and no other file. A running "
           "daemon is asked for a few seconds by ringfill trace."),
      Integer("trace.max_spans", "1000000", &Config::trace_max_spans, 1, 1e9,
              "Operations after which the file is complete; each takes about 150 bytes."),
  };
}

std::vector<ConfigKey> DebugKeys() {
  return {
      Text(
          "debug.plan_log", ConfigKind::kText, "", &Config::debug_plan_log,
          "File that records every step and what came of it, for ringfilld replay; it holds the "
          "prompts' tokens. The log of the run before becomes FILE.1. \"\" is off. A leading ~ and "
          "${NAME} are expanded."),
      Bytes("debug.plan_log_max_bytes", "1GiB", &Config::debug_plan_log_max_bytes, 65536, kMaxBytes,
            "Size at which the log ends; a step takes some 100 bytes and 4 for each KV page of its "
            "requests."),
  };
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view LastPart(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::span<const ConfigKey> ConfigTable() {
  static const std::vector<ConfigKey>* const table = [] {
    auto* all = new std::vector<ConfigKey>(ServerKeys());
    for (auto section : {ModelKeys, CacheKeys, RingKeys, TraceKeys, DebugKeys}) {
      for (ConfigKey& key : section()) all->push_back(std::move(key));
    }
    return all;
  }();
  return *table;
}

const ConfigKey* FindConfigKey(std::string_view name) {
  for (const ConfigKey& key : ConfigTable()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string UnknownKeyMessage(std::string_view name) {
  constexpr size_t kShown = 100;
  const std::string shown(name.substr(0, kShown));
  const ConfigKey* nearest = nullptr;
  size_t best = std::max<size_t>(2, shown.size() / 3) + 1;
  for (const ConfigKey& key : ConfigTable()) {
    const size_t distance =
        LastPart(key.name) == LastPart(shown) ? 1 : EditDistance(key.name, shown);
    if (distance < best) {
      best = distance;
      nearest = &key;
    }
  }
  if (nearest != nullptr) {
    return Concat("unknown key \"", shown, "\"; did you mean \"", nearest->name, "\"?");
  }
  std::string names;
  for (const ConfigKey& key : ConfigTable()) names += Concat(names.empty() ? "" : ", ", key.name);
  return Concat("unknown key \"", shown, "\"; the keys are ", names);
}

}  // namespace ringfill
