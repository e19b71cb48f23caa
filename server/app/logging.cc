#include "server/app/logging.h"

#include <string>

#include "base/log.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

namespace ringfill {
namespace {

LogLevel ParseLevel(std::string_view level) {
  if (level == "debug") return LogLevel::kDebug;
  if (level == "warning") return LogLevel::kWarning;
  if (level == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

LogLevel FromGrpc(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
    case GPR_LOG_SEVERITY_INFO:  // chatter about connections
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_ERROR:
      return LogLevel::kWarning;  // its errors are mostly peers that went away
  }
  return LogLevel::kWarning;
}

void ForwardGrpcLog(gpr_log_func_args* args) {
  Log(FromGrpc(args->severity), "gRPC",
      {{"detail", args->message}, {"file", args->file}, {"line", args->line}});
}

// Its messages name fields and types, never their values.
void ForwardProtobufLog(google::protobuf::LogLevel, const char* file, int line,
                        const std::string& message) {
  Log(LogLevel::kWarning, "protobuf", {{"detail", message}, {"file", file}, {"line", line}});
}

}  // namespace

void UseLogLevel(std::string_view level) { SetLogLevel(ParseLevel(level)); }

void SetUpLogging(std::string_view level) {
  UseLogLevel(level);
  gpr_set_log_function(ForwardGrpcLog);
  google::protobuf::SetLogHandler(ForwardProtobufLog);
}

}  // namespace ringfill
