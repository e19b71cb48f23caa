// From the configuration to what the engine and the model layer take.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/app/config.h"

namespace ringfill {

// INVALID_ARGUMENT when compute.isa asks for what this CPU does not have.
absl::StatusOr<EngineOptions> ToEngineOptions(const Config& config);

// What an operator should know about a configuration that works but may not be what was meant.
std::vector<std::string> ConfigWarnings(const Config& config, const ModelConfig& model);

}  // namespace ringfill
