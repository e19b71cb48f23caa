// The command line of ringfilld.
#pragma once

#include <optional>
#include <string>

#include "server/app/command_line.h"
#include "server/app/config.h"

namespace ringfill {

struct DaemonOptions {
  enum class Action { kServe, kCheckConfig, kPrintConfig };
  Action action = Action::kServe;
  ConfigSources sources;
  // What they say. Settled (SettleConfig), except for kPrintConfig without a
  // model path, which makes a template.
  Config config;
};

// What a parsed command line asks for: options, or an exit code when everything is said already
// (--help and --version on stdout with 0, errors on stderr with 2).
struct ParsedCommandLine {
  std::optional<DaemonOptions> options;
  int exit_code = 0;
};
ParsedCommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace ringfill
