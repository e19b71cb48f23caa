#include "server/app/config_reload.h"

#include <string>
#include <string_view>

#include "base/log.h"
#include "nlohmann/json.hpp"
#include "server/app/logging.h"

namespace ringfill {
namespace {

constexpr std::string_view kLive = "log.level";

absl::StatusOr<Config> Read(const ConfigSources& sources) {
  RF_ASSIGN_OR_RETURN(Config config, ReadConfig(sources));
  RF_RETURN_IF_ERROR(SettleConfig(config));
  return config;
}

}  // namespace

void ConfigReload::Run() {
  const absl::StatusOr<Config> read = Read(sources_);
  if (!read.ok()) {
    Log(LogLevel::kError, "the configuration cannot be read again; nothing changes",
        {{"error", std::string(read.status().message())}});
    return;
  }
  nlohmann::json waiting = nlohmann::json::array();
  for (const ConfigKey& key : ConfigTable()) {
    if (key.name == kLive) continue;
    if (ConfigValueText(key, *read) != ConfigValueText(key, running_)) waiting.push_back(key.name);
  }
  running_.log_level = read->log_level;
  if (!LogEnabled(LogLevel::kInfo)) UseLogLevel(running_.log_level);
  Log(LogLevel::kInfo, "the configuration was read again",
      {{"log.level", running_.log_level}, {"wait_for_a_restart", waiting}});
  UseLogLevel(running_.log_level);
}

}  // namespace ringfill
