// What the command lines of ringfilld, its worker and its replay have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/app/config.h"

namespace CLI {
class App;
}

namespace ringfill {

// Where a configuration comes from: the file, then each setting.
struct ConfigSources {
  std::string file;
  std::vector<std::string> settings;
};

// --config and --set, into `sources`, which outlives the parsing.
void AddConfigOptions(CLI::App& app, ConfigSources& sources);
// Not settled yet (SettleConfig): options of their own may come on top.
absl::StatusOr<Config> ReadConfig(const ConfigSources& sources);

// Nothing when the command line is fine; otherwise the exit code, and everything is said: --help
// and --version on stdout with 0, errors by BadUsage.
std::optional<int> ParseArguments(CLI::App& app, int argc, const char* const* argv);
// On stderr, with the way to the help. kExitConfig.
int BadUsage(const CLI::App& app, std::string_view what);

}  // namespace ringfill
