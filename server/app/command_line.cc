#include "server/app/command_line.h"

#include <iostream>

#include "CLI/CLI.hpp"
#include "server/app/exit_codes.h"

namespace ringfill {

void AddConfigOptions(CLI::App& app, ConfigSources& sources) {
  app.add_option("--config", sources.file, "YAML file with the configuration")->type_name("FILE");
  app.add_option("--set", sources.settings, "Sets one configuration key; wins over the file")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

absl::StatusOr<Config> ReadConfig(const ConfigSources& sources) {
  Config config = DefaultConfig();
  if (!sources.file.empty()) RF_RETURN_IF_ERROR(ApplyConfigFile(sources.file, config));
  for (const std::string& setting : sources.settings) {
    RF_RETURN_IF_ERROR(ApplySetting(setting, config));
  }
  return config;
}

std::optional<int> ParseArguments(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Its own printer handles --help and --version.
    if (e.get_exit_code() == 0) return app.exit(e, std::cout, std::cerr);
    return BadUsage(app, e.what());
  }
  return std::nullopt;
}

int BadUsage(const CLI::App& app, std::string_view what) {
  std::cerr << app.get_name() << ": " << what << "\nTry: " << app.get_name() << " --help\n";
  return kExitConfig;
}

}  // namespace ringfill
