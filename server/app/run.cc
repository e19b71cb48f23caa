#include "server/app/run.h"

#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <utility>

#include "base/log.h"
#include "grpc/grpc.h"
#include "server/app/config_reload.h"
#include "server/app/daemon.h"
#include "server/app/exit_codes.h"
#include "server/app/file_limit.h"
#include "server/app/logging.h"
#include "server/app/options.h"
#include "server/app/replay.h"
#include "server/app/service_manager.h"
#include "server/app/service_reporter.h"
#include "server/app/signals.h"
#include "server/app/worker.h"
#include "server/text.h"

namespace ringfill {
namespace {

int Fail(const ServiceManager& manager, int exit_code, std::string_view what,
         const absl::Status& status) {
  Log(LogLevel::kError, what, {{"error", std::string(status.message())}});
  manager.NotifyStatus(Concat(what, ": ", status.message()));
  return exit_code;
}

void Reload(const ServiceManager& manager, ConfigReload& reload) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  manager.Notify(Concat("RELOADING=1\nMONOTONIC_USEC=",
                        std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  reload.Run();
  manager.Notify("READY=1");
}

// Model, daemon, ready line; then waits for a signal and drains.
int Serve(const DaemonOptions& options) {
  const Config& config = options.config;
  SetUpLogging(config.log_level);
  RaiseFileLimit();
  const ServiceManager manager = ServiceManager::FromEnvironment();
  ConfigReload reload(options.sources, config);
  StopSignals signals(kExitOk, [&] { Reload(manager, reload); });  // before any thread starts
  // Held to the end of the process: tearing the library down with its last object may stall for
  // seconds.
  grpc_init();
  manager.NotifyStatus(Concat("loading ", config.model_path));
  absl::StatusOr<ServedModel> model = LoadServedModel(config.model_path);
  if (!model.ok()) return Fail(manager, kExitModel, "the model cannot be loaded", model.status());
  manager.NotifyStatus(Concat("starting ", config.ranks_count, " ranks"));
  absl::StatusOr<std::unique_ptr<Daemon>> started = Daemon::Start(config, *std::move(model));
  if (!started.ok()) return Fail(manager, kExitConfig, "cannot start", started.status());
  Daemon& daemon = **started;
  signals.Started();
  std::cout << "ready grpc=" << daemon.grpc_address() << " metrics=" << daemon.metrics_address()
            << std::endl;
  auto reporter = std::make_unique<ServiceReporter>(
      manager, ReportedService{.name = Concat(daemon.engine().model().config().name, " on ",
                                              daemon.grpc_address()),
                               .status = [&daemon] { return daemon.engine().Status(); },
                               .stalled_s = daemon.stalled_s()});
  const int signal = signals.WaitFirst();
  Log(LogLevel::kInfo, "stopping",
      {{"signal", strsignal(signal)}, {"drain_timeout_s", config.server_drain_timeout_s}});
  reporter->Draining();
  daemon.Shutdown(FromSeconds(config.server_drain_timeout_s),
                  [&signals] { return signals.second(); });
  reporter.reset();  // asks the engine
  started->reset();
  Log(LogLevel::kInfo, "stopped");
  return kExitOk;
}

}  // namespace

int RunDaemon(int argc, const char* const* argv) {
  FillStandardFiles();
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
  return Serve(options);
}

}  // namespace ringfill
