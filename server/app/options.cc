#include "server/app/options.h"

#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "server/app/command_line.h"
#include "server/app/exit_codes.h"
#include "server/app/version.h"

namespace ringfill {
namespace {

constexpr char kExamples[] =
    R"(Serves a large language model on long prompts over gRPC, by ring attention over ranks.
Prints one line on stdout when ready: ready grpc=HOST:PORT metrics=HOST:PORT
Logs JSON lines on stderr. SIGTERM or SIGINT drains and stops; a second one cuts the drain short,
a third ends it at once.
SIGHUP reads the configuration again: log.level is taken over, the log names what waits for a restart.

Examples:
  RINGFILL_MODEL=$(tools/fetch_model.sh) ringfilld --config config/quickstart.yaml
  ringfilld --set model.path=model.gguf --set ranks.count=2 --set server.listen=127.0.0.1:0
  ringfilld --config my.yaml --check-config
  ringfilld --print-config > my.yaml
  ringfilld worker --help        a rank as a process of its own, here or on another host
  ringfilld replay --help        runs the steps of a debug.plan_log again and compares

Exit codes: 0 stopped by a signal, 2 bad usage or configuration (also: an address cannot be bound),
3 the model cannot be loaded. Those of ringfilld worker and replay are in their --help.)";

struct RawOptions {
  ConfigSources config;
  bool check_config = false;
  bool print_config = false;
};

absl::Status FillConfig(const RawOptions& raw, DaemonOptions& options) {
  RF_ASSIGN_OR_RETURN(options.config, ReadConfig(raw.config));
  if (options.action == DaemonOptions::Action::kPrintConfig && options.config.model_path.empty()) {
    return absl::OkStatus();
  }
  return SettleConfig(options.config);
}

}  // namespace

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app(kExamples, "ringfilld");
  RawOptions raw;
  app.footer("\n" + ConfigHelp());
  AddConfigOptions(app, raw.config);
  app.add_flag("--check-config", raw.check_config, "Checks the configuration and exits");
  app.add_flag("--print-config", raw.print_config, "Prints the whole configuration and exits");
  app.set_version_flag("--version", std::string("ringfilld ") + Version());
  if (const std::optional<int> exit_code = ParseArguments(app, argc, argv)) {
    return {std::nullopt, *exit_code};
  }
  if (raw.config.file.empty() && raw.config.settings.empty() && !raw.print_config) {
    return {std::nullopt,
            BadUsage(app, "no configuration; give --config FILE or --set model.path=FILE")};
  }
  DaemonOptions options;
  if (raw.check_config) options.action = DaemonOptions::Action::kCheckConfig;
  if (raw.print_config) options.action = DaemonOptions::Action::kPrintConfig;
  if (const absl::Status read = FillConfig(raw, options); !read.ok()) {
    std::cerr << "ringfilld: " << read.message() << "\n";
    return {std::nullopt, kExitConfig};
  }
  options.sources = std::move(raw.config);
  return {std::move(options), kExitOk};
}

}  // namespace ringfill
