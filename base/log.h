// Structured log lines: one JSON object a line on stderr, through spdlog. Never prompt text.
//
//   Log(LogLevel::kInfo, "model loaded", {{"path", path}, {"layers", 30}});
//
// Thread-safe.
#pragma once

#include <string_view>

#include "nlohmann/json.hpp"

namespace ringfill {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. The default is kInfo.
void SetLogLevel(LogLevel level);
// True when lines of `level` are written: ask before building costly fields.
bool LogEnabled(LogLevel level);

// Fields that every line of this process starts with from now on, after the message: who speaks.
void SetLogContext(const nlohmann::json& fields);

// `fields` is a JSON object; invalid UTF-8 in strings is replaced, never thrown on.
void Log(LogLevel level, std::string_view message,
         const nlohmann::json& fields = nlohmann::json::object());

}  // namespace ringfill
