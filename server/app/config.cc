#include "server/app/config.h"

#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/text.h"

namespace ringfill {
namespace {

// The value of an environment variable that the configuration names.
absl::StatusOr<std::string> FromEnvironment(const std::string& name) {
  const char* const value = name.empty() ? nullptr : std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    return absl::InvalidArgumentError(Concat("the environment variable ", name, " is not set"));
  }
  return std::string(value);
}

absl::StatusOr<std::string> ExpandPath(std::string_view path) {
  std::string out;
  if (path == "~" || path.starts_with("~/")) {
    RF_ASSIGN_OR_RETURN(out, FromEnvironment("HOME"));
    path.remove_prefix(1);
  }
  for (size_t open; (open = path.find("${")) != std::string_view::npos;) {
    const size_t close = path.find('}', open);
    if (close == std::string_view::npos) {
      return absl::InvalidArgumentError(
          Concat("\"${\" without \"}\" in \"", path.substr(0, 100), "\""));
    }
    RF_ASSIGN_OR_RETURN(std::string value,
                        FromEnvironment(std::string(path.substr(open + 2, close - open - 2))));
    out += Concat(path.substr(0, open), value);
    path.remove_prefix(close + 1);
  }
  out += path;
  return out;
}

// " at FILE:LINE" for messages, empty for keys that no file set.
std::string AtOrigin(const Config& config, std::string_view name) {
  const auto found = config.origins.find(name);
  return found == config.origins.end() ? "" : Concat(" at ", found->second);
}

absl::Status PathError(const Config& config, std::string_view name, std::string_view message) {
  const auto found = config.origins.find(name);
  return absl::InvalidArgumentError(
      Concat(found == config.origins.end() ? "" : found->second + ": ", name, message));
}

absl::Status Expand(const Config& config, std::string_view name, std::string& path) {
  absl::StatusOr<std::string> expanded = ExpandPath(path);
  if (!expanded.ok()) {
    return PathError(config, name, Concat(": ", expanded.status().message()));
  }
  path = *std::move(expanded);
  return absl::OkStatus();
}

// "ring.mode (dealt at my.yaml:3)".
std::string Named(const Config& config, std::string_view name) {
  return Concat(name, " (", ConfigValueText(*FindConfigKey(name), config), AtOrigin(config, name),
                ")");
}

absl::Status CheckStrict(const Config& config) {
  if (config.compute_numerics != "strict") return absl::OkStatus();
  if (config.ranks_backend == "cuda") {
    return absl::InvalidArgumentError(Concat(Named(config, "compute.numerics"),
                                             " is there on the CPU alone, not with ",
                                             Named(config, "ranks.backend")));
  }
  const std::pair<std::string_view, std::string_view> fixed[] = {
      {"ring.mode", "auto"}, {"ring.strategy", "auto"}, {"sharding.layout", "snake"}};
  for (const auto& [name, value] : fixed) {
    if (ConfigValueText(*FindConfigKey(name), config) == value) continue;
    return absl::InvalidArgumentError(Concat(Named(config, name), " must be ", value, " with ",
                                             Named(config, "compute.numerics"),
                                             ", which fixes how prompts are computed"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevices(const Config& config) {
  const std::vector<int> named = *ParseGpus(config.ranks_devices);
  const size_t devices = named.size();
  std::string wrong;
  if (std::set<int>(named.begin(), named.end()).size() != devices) {
    wrong = " names a GPU twice: each rank needs its own";
  } else if (devices == 0 || config.ring_transport != "processes") {
    return absl::OkStatus();
  } else if (config.ranks_backend != "cuda") {
    wrong = Concat(" needs ranks.backend cuda with ", Named(config, "ring.transport"));
  } else if (!config.ring_start_workers) {
    wrong = Concat(" is for workers that the daemon starts: with ",
                   Named(config, "ring.start_workers"), " give each worker its --device");
  } else if (devices != static_cast<size_t>(config.ranks_count)) {
    wrong = Concat(" must name a GPU for each rank: ", Named(config, "ranks.count"));
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(Named(config, "ranks.devices"), wrong));
}

absl::Status CheckWorkers(const Config& config) {
  const size_t weights = ParseWeights(config.ranks_weights)->size();
  if (weights > 0 && weights != static_cast<size_t>(config.ranks_count)) {
    return absl::InvalidArgumentError(Concat(
        Named(config, "ranks.weights"), " has ", weights, weights == 1 ? " value" : " values",
        "; it must have one for each rank: ", Named(config, "ranks.count")));
  }
  RF_RETURN_IF_ERROR(CheckDevices(config));
  if (config.ring_transport != "processes" || !config.ring_secret_file.empty()) {
    return absl::OkStatus();
  }
  if (!IsLoopback(config.ring_listen)) {
    return absl::InvalidArgumentError(
        Concat(Named(config, "ring.listen"),
               " can be reached from other machines; it needs ring.secret_file"));
  }
  if (!config.ring_start_workers) {
    return absl::InvalidArgumentError(
        Concat(Named(config, "ring.start_workers"),
               ": workers that are started elsewhere need ring.secret_file"));
  }
  return absl::OkStatus();
}

}  // namespace

Config DefaultConfig() {
  Config config;
  for (const ConfigKey& key : ConfigTable()) {
    RF_CHECK(SetConfigValue(key, key.default_text, config).ok());
  }
  return config;
}

absl::Status ApplySetting(std::string_view setting, Config& config) {
  const size_t equals = setting.find('=');
  if (equals == std::string_view::npos) {
    return absl::InvalidArgumentError(
        Concat("--set ", setting.substr(0, 100), ": expected key=value"));
  }
  const std::string_view name = setting.substr(0, equals);
  const ConfigKey* const key = FindConfigKey(name);
  if (key == nullptr) {
    return absl::InvalidArgumentError(Concat("--set: ", UnknownKeyMessage(name)));
  }
  const absl::Status set = SetConfigValue(*key, setting.substr(equals + 1), config);
  if (set.ok()) {
    config.origins.erase(std::string(name));
    return set;
  }
  return absl::InvalidArgumentError(Concat("--set ", set.message()));
}

absl::Status SettleConfig(Config& config) {
  RF_RETURN_IF_ERROR(Expand(config, "model.path", config.model_path));
  RF_RETURN_IF_ERROR(Expand(config, "ring.secret_file", config.ring_secret_file));
  RF_RETURN_IF_ERROR(Expand(config, "trace.path", config.trace_path));
  RF_RETURN_IF_ERROR(Expand(config, "debug.plan_log", config.debug_plan_log));
  if (config.model_path.empty()) {
    return PathError(config, "model.path",
                     " is not set; name a GGUF file, for example --set model.path=model.gguf");
  }
  if (config.sharding_stripe_tokens % config.kv_page_tokens != 0) {
    return absl::InvalidArgumentError(Concat(
        "sharding.stripe_tokens (", config.sharding_stripe_tokens,
        AtOrigin(config, "sharding.stripe_tokens"), ") must be a multiple of kv.page_tokens (",
        config.kv_page_tokens, AtOrigin(config, "kv.page_tokens"), ")"));
  }
  RF_RETURN_IF_ERROR(CheckStrict(config));
  return CheckWorkers(config);
}

}  // namespace ringfill
