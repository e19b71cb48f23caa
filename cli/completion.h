// Shell completion, made from the application itself so that the two cannot drift apart.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "cli/options.h"

namespace ringfill::cli {

// The script to source (bash, fish) or to put in a folder of fpath as _ringfill (zsh).
std::string CompletionScript(const CLI::App& app, Shell shell);

}  // namespace ringfill::cli
