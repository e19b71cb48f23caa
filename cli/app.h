// The command line: flags, help, and which command runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/console.h"
#include "cli/options.h"

namespace ringfill::cli {

// Marks options whose value is a path, for shell completion.
inline constexpr const char* kFileType = "FILE";
inline constexpr const char* kCompletionCommand = "completion";

// An application that fills `options`, which outlives it, when it parses.
std::unique_ptr<CLI::App> MakeApp(Options& options);

// Parses and runs; returns an ExitCode. Called once, before the process has other threads.
// `arguments` is without the program's name.
int RunApp(std::vector<std::string> arguments, Console& console);

}  // namespace ringfill::cli
