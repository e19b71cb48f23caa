// Reads the configuration again while the daemon runs.
#pragma once

#include <utility>

#include "server/app/command_line.h"
#include "server/app/config.h"

namespace ringfill {

// What can change under a running daemon does; for the rest it says which keys wait for a restart.
// Not thread-safe.
class ConfigReload {
 public:
  // `running`: what `sources` gave when the daemon started.
  ConfigReload(ConfigSources sources, Config running)
      : sources_(std::move(sources)), running_(std::move(running)) {}

  // Reads the same file and settings. log.level is taken over. The outcome is logged; with sources
  // that are not right nothing changes.
  void Run();

 private:
  const ConfigSources sources_;
  Config running_;
};

}  // namespace ringfill
