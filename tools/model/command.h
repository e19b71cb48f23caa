// What the programs of this folder share.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/status.h"

namespace ringfill {

// Parses and runs `work`. Exit codes: 0, 1 when the work fails, 2 for bad usage.
int RunCommand(CLI::App& app, std::vector<std::string> arguments, std::ostream& out,
               std::ostream& err, const std::function<absl::Status()>& work);

// "layers 3, width 576, ..., 41.2 MB" of a model file that loads.
absl::StatusOr<std::string> DescribeModel(const std::string& path);

}  // namespace ringfill
