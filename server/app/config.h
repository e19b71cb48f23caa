// The daemon's configuration. One table (ConfigTable) holds every key with its type, default, range
// and meaning; the YAML reader, --set, --print-config, --help and the test of config/default.yaml
// all follow it.
//
// Values only; nothing here is shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace ringfill {

// One field for each key: `kv.page_tokens` is kv_page_tokens. Made by DefaultConfig.
struct Config {
  std::string server_listen;
  int64_t server_max_message_bytes = 0;
  int64_t server_max_concurrent_streams = 0;
  double server_drain_timeout_s = 0;
  double server_slow_client_timeout_s = 0;
  int64_t server_outbox_events = 0;
  std::string metrics_listen;  // empty: no metrics endpoint
  std::string log_level;
  std::string model_path;
  int64_t model_max_context_tokens = 0;
  int64_t ranks_count = 0;
  std::string ranks_backend;
  std::string ranks_devices;  // "" (the first ones) or numbers of GPUs separated by commas
  std::string ranks_weights;  // "" (even), "auto" or numbers separated by commas
  std::string compute_dtype;
  std::string compute_numerics;
  int64_t compute_threads = 0;
  std::string compute_isa;
  int64_t compute_expanded_weight_bytes = 0;
  std::string kv_dtype;
  int64_t kv_page_tokens = 0;
  int64_t kv_memory_bytes = 0;
  double kv_memory_fraction = 0;
  int64_t kv_decode_reserve = 0;
  std::string sharding_layout;
  int64_t sharding_stripe_tokens = 0;
  int64_t prefill_chunk_tokens = 0;
  int64_t scheduler_max_queued_requests = 0;
  int64_t scheduler_max_running_requests = 0;
  std::string ring_strategy;
  std::string ring_mode;
  int64_t ring_gather_bytes = 0;
  int64_t ring_min_round_timeout_ms = 0;
  std::string ring_transport;
  std::string ring_listen;
  std::string ring_secret_file;  // empty: made at start
  bool ring_start_workers = false;
  double ring_join_timeout_s = 0;
  double ring_max_restart_pause_s = 0;
  double ring_heartbeat_timeout_s = 0;
  std::string trace_path;  // empty: off
  int64_t trace_max_spans = 0;
  std::string debug_plan_log;  // empty: off
  int64_t debug_plan_log_max_bytes = 0;

  // Not a key: "file:line" of each key that a file set last, by the key's name.
  std::map<std::string, std::string, std::less<>> origins;
};

enum class ConfigKind {
  kInteger,
  kBytes,     // an integer with an optional suffix: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB
  kSeconds,   // a finite decimal number
  kFraction,  // likewise, without unit
  kBool,      // true or false
  kGpus,      // "" or numbers separated by commas, as "0,1,3"
  kWeights,   // "", auto or positive numbers separated by commas, as "2,1,1"
  kChoice,
  kAddress,  // HOST:PORT or [IPv6]:PORT; port 0 picks a free one
  kText,
};

struct ConfigKey {
  std::string_view name;  // "kv.page_tokens"
  ConfigKind kind = ConfigKind::kText;
  std::string_view default_text;
  std::variant<int64_t Config::*, double Config::*, bool Config::*, std::string Config::*> field;
  std::string_view description;  // one or two lines, unit included
  double min = 0, max = 0;       // of numbers, inclusive; exact: below 2^53
  int64_t multiple_of = 1;
  std::vector<std::string_view> choices;
  bool may_be_empty = false;  // addresses: "" switches the listener off
};

// In the order in which files and --help list them, sections together.
std::span<const ConfigKey> ConfigTable();
// Null when there is none.
const ConfigKey* FindConfigKey(std::string_view name);
// `unknown key "kv.pagetokens"; did you mean "kv.page_tokens"?`, or with all keys when none is
// near.
std::string UnknownKeyMessage(std::string_view name);
// "a multiple of 16 from 16 to 4096", "auto, f32 or bf16", ...
std::string AllowedValues(const ConfigKey& key);

Config DefaultConfig();
// INVALID_ARGUMENT with the key, the value and what is allowed.
absl::Status SetConfigValue(const ConfigKey& key, std::string_view text, Config& config);
// The value as SetConfigValue would read it back.
std::string ConfigValueText(const ConfigKey& key, const Config& config);

// The numbers of a kWeights value; empty for "" and "auto", nothing when it is neither.
std::optional<std::vector<double>> ParseWeights(std::string_view text);
// The numbers of a kGpus value, nothing when it is none.
std::optional<std::vector<int>> ParseGpus(std::string_view text);
// HOST:PORT or [IPv6]:PORT that other machines cannot reach.
bool IsLoopback(std::string_view address);
// HOST:PORT or [IPv6]:PORT, with port 0 too.
bool IsAddress(std::string_view text);

// Files are YAML maps, nested by section. Unknown, repeated and empty keys, lists, anchors,
// aliases, tags and second documents are refused with `file:line:`. `file` only names the source.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;
absl::Status ApplyConfigYaml(std::string_view text, std::string_view file, Config& config);
absl::Status ApplyConfigFile(const std::string& path, Config& config);
// `key=value`, as --set takes it.
absl::Status ApplySetting(std::string_view setting, Config& config);

// Expands a leading ~ and every ${NAME} in the paths, then checks what concerns several keys.
// INVALID_ARGUMENT naming an unset variable or the keys that do not fit each other, with
// `file:line` where a file set them.
absl::Status SettleConfig(Config& config);

// A complete YAML file that gives `config` again.
std::string PrintConfig(const Config& config);
// The table as text for --help.
std::string ConfigHelp();

}  // namespace ringfill
