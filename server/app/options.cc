#include "server/app/options.h"

#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "server/app/exit_codes.h"
#include "server/app/version.h"

namespace ringfill {
namespace {

constexpr char kExamples[] =
    R"(Serves a large language model on long prompts over gRPC, by ring attention over ranks.
Prints one line on stdout when ready: ready grpc=HOST:PORT metrics=HOST:PORT
Logs JSON lines on stderr. SIGTERM or SIGINT drains and stops; a second one cuts the drain short.

Examples:
  ringfilld --config config/quickstart.yaml
  ringfilld --set model.path=model.gguf --set ranks.count=2 --set server.listen=127.0.0.1:0
  ringfilld --config my.yaml --check-config
  ringfilld --print-config > my.yaml
  ringfilld worker --help        a rank as a process of its own, here or on another host
  ringfilld replay --help        runs the steps of a debug.plan_log again and compares

Exit codes: 0 stopped by a signal, 2 bad usage or configuration (also: an address cannot be bound),
3 the model cannot be loaded. Those of ringfilld worker and replay are in their --help.)";

struct RawOptions {
  std::string config_file;
  std::vector<std::string> settings;
  bool check_config = false;
  bool print_config = false;
};

absl::Status ReadConfig(const RawOptions& raw, DaemonOptions& options) {
  options.config = DefaultConfig();
  if (!raw.config_file.empty()) {
    RF_RETURN_IF_ERROR(ApplyConfigFile(raw.config_file, options.config));
  }
  for (const std::string& setting : raw.settings) {
    RF_RETURN_IF_ERROR(ApplySetting(setting, options.config));
  }
  if (options.action == DaemonOptions::Action::kPrintConfig && options.config.model_path.empty()) {
    return absl::OkStatus();
  }
  return SettleConfig(options.config);
}

// CLI11's message with a way on. Its own printer handles --help and --version.
int ReportUsage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error, std::cout, std::cerr);
  std::cerr << "ringfilld: " << error.what() << "\nTry: ringfilld --help\n";
  return kExitConfig;
}

}  // namespace

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app(kExamples, "ringfilld");
  RawOptions raw;
  app.footer("\n" + ConfigHelp());
  app.add_option("--config", raw.config_file, "YAML file with the configuration")
      ->type_name("FILE");
  app.add_option("--set", raw.settings, "Sets one configuration key; wins over the file")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  app.add_flag("--check-config", raw.check_config, "Checks the configuration and exits");
  app.add_flag("--print-config", raw.print_config, "Prints the whole configuration and exits");
  app.set_version_flag("--version", std::string("ringfilld ") + Version());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return {std::nullopt, ReportUsage(app, e)};
  }
  if (raw.config_file.empty() && raw.settings.empty() && !raw.print_config) {
    std::cerr << "ringfilld: no configuration; give --config FILE or --set model.path=FILE\n"
                 "Try: ringfilld --help\n";
    return {std::nullopt, kExitConfig};
  }
  DaemonOptions options;
  if (raw.check_config) options.action = DaemonOptions::Action::kCheckConfig;
  if (raw.print_config) options.action = DaemonOptions::Action::kPrintConfig;
  if (const absl::Status read = ReadConfig(raw, options); !read.ok()) {
    std::cerr << "ringfilld: " << read.message() << "\n";
    return {std::nullopt, kExitConfig};
  }
  return {std::move(options), kExitOk};
}

}  // namespace ringfill
