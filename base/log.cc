#include "base/log.h"

#include <chrono>
#include <ctime>
#include <string>

#include "base/mutex.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace ringfill {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The one logger: its lifetime is the process's, and its destructor must not run while another
// thread still logs, so it is never destroyed.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("ringfill", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

// Never destroyed, for the same reason.
struct Context {
  Mutex mutex;
  nlohmann::json fields ABSL_GUARDED_BY(mutex) = nlohmann::json::object();
};
Context& LogContext() {
  static Context* const context = new Context;
  return *context;
}

std::string UtcNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm tm{};
  gmtime_r(&seconds, &tm);
  char text[32];
  const size_t n = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
  std::string out(text, n);
  const std::string fraction = std::to_string(1000 + ms % 1000);
  return out + "." + fraction.substr(1) + "Z";
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void SetLogContext(const nlohmann::json& fields) {
  MutexLock lock(&LogContext().mutex);
  LogContext().fields = fields;
}

void Log(LogLevel level, std::string_view message, const nlohmann::json& fields) {
  if (!LogEnabled(level)) return;
  nlohmann::ordered_json line;
  line["time"] = UtcNow();
  line["level"] = spdlog::level::to_string_view(ToSpdlog(level)).data();
  line["message"] = message;
  {
    MutexLock lock(&LogContext().mutex);
    for (const auto& [key, value] : LogContext().fields.items()) line[key] = value;
  }
  for (const auto& [key, value] : fields.items()) line[key] = value;
  Logger().log(ToSpdlog(level), "{}",
               line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace ringfill
