// Log set-up of the process.
#pragma once

#include <string_view>

namespace ringfill {

// Sets the least level ("debug", "info", "warning", "error") and sends the own messages of gRPC
// and protobuf through the JSON log. Call once, before any gRPC object exists.
void SetUpLogging(std::string_view level);
// Another least level from now on. Thread-safe.
void UseLogLevel(std::string_view level);

}  // namespace ringfill
