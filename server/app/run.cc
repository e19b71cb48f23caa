#include "server/app/run.h"

#include <cstring>
#include <iostream>
#include <utility>

#include "base/log.h"
#include "grpc/grpc.h"
#include "server/app/daemon.h"
#include "server/app/exit_codes.h"
#include "server/app/file_limit.h"
#include "server/app/logging.h"
#include "server/app/options.h"
#include "server/app/replay.h"
#include "server/app/signals.h"
#include "server/app/worker.h"

namespace ringfill {
namespace {

int Fail(int exit_code, std::string_view what, const absl::Status& status) {
  Log(LogLevel::kError, what, {{"error", std::string(status.message())}});
  return exit_code;
}

// Model, daemon, ready line; then waits for a signal and drains.
int Serve(const Config& config) {
  SetUpLogging(config.log_level);
  RaiseFileLimit();
  StopSignals signals(kExitOk);  // before any thread starts
  // Held to the end of the process: tearing the library down with its last object may stall for
  // seconds.
  grpc_init();
  absl::StatusOr<ServedModel> model = LoadServedModel(config.model_path);
  if (!model.ok()) return Fail(kExitModel, "the model cannot be loaded", model.status());
  absl::StatusOr<std::unique_ptr<Daemon>> started = Daemon::Start(config, *std::move(model));
  if (!started.ok()) return Fail(kExitConfig, "cannot start", started.status());
  Daemon& daemon = **started;
  signals.Started();
  std::cout << "ready grpc=" << daemon.grpc_address() << " metrics=" << daemon.metrics_address()
            << std::endl;
  const int signal = signals.WaitFirst();
  Log(LogLevel::kInfo, "stopping",
      {{"signal", strsignal(signal)}, {"drain_timeout_s", config.server_drain_timeout_s}});
  daemon.Shutdown(FromSeconds(config.server_drain_timeout_s),
                  [&signals] { return signals.second(); });
  started->reset();
  Log(LogLevel::kInfo, "stopped");
  return kExitOk;
}

}  // namespace

int RunDaemon(int argc, const char* const* argv) {
  IgnoreWriteSignals();
  if (argc > 1 && std::strcmp(argv[1], "worker") == 0) return RunWorker(argc - 1, argv + 1);
  if (argc > 1 && std::strcmp(argv[1], "replay") == 0) return RunReplay(argc - 1, argv + 1);
  const ParsedCommandLine command_line = ParseCommandLine(argc, argv);
  if (!command_line.options) return command_line.exit_code;
  const DaemonOptions& options = *command_line.options;
  switch (options.action) {
    case DaemonOptions::Action::kPrintConfig:
      std::cout << PrintConfig(options.config);
      return kExitOk;
    case DaemonOptions::Action::kCheckConfig:
      std::cout << "configuration ok" << std::endl;
      return kExitOk;
    case DaemonOptions::Action::kServe:
      break;
  }
  return Serve(options.config);
}

}  // namespace ringfill
