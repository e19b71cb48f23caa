#include "server/app/config.h"

#include <cstdlib>

#include "base/check.h"
#include "server/text.h"

namespace ringfill {
namespace {

// The value of an environment variable that the configuration names.
absl::StatusOr<std::string> FromEnvironment(const std::string& name) {
  const char* const value = name.empty() ? nullptr : std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    return absl::InvalidArgumentError(
        Concat("model.path: the environment variable ", name, " is not set"));
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
          Concat("model.path: \"${\" without \"}\" in \"", path.substr(0, 100), "\""));
    }
    RF_ASSIGN_OR_RETURN(std::string value,
                        FromEnvironment(std::string(path.substr(open + 2, close - open - 2))));
    out += Concat(path.substr(0, open), value);
    path.remove_prefix(close + 1);
  }
  out += path;
  return out;
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
  if (set.ok()) return set;
  return absl::InvalidArgumentError(Concat("--set ", set.message()));
}

absl::Status SettleConfig(Config& config) {
  RF_ASSIGN_OR_RETURN(config.model_path, ExpandPath(config.model_path));
  if (config.model_path.empty()) {
    return absl::InvalidArgumentError(
        "model.path is not set; name a GGUF file, for example --set model.path=model.gguf");
  }
  if (config.sharding_stripe_tokens % config.kv_page_tokens != 0) {
    return absl::InvalidArgumentError(
        Concat("sharding.stripe_tokens (", config.sharding_stripe_tokens,
               ") must be a multiple of kv.page_tokens (", config.kv_page_tokens, ")"));
  }
  return absl::OkStatus();
}

}  // namespace ringfill
