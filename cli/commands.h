// The commands, one file each. Each connects, makes its calls, prints, and returns an ExitCode.
#pragma once

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "ringfill/v1/ringfill.pb.h"

namespace ringfill::cli {

// What a command needs besides its own options. The references outlive the call.
struct Session {
  const ConnectionOptions& connection;
  Interrupt& interrupt;
  Console& console;
};

int RunGenerate(const GenerateOptions& options, Session session);
int RunScore(const ScoreOptions& options, Session session);
int RunTokenize(const TokenizeOptions& options, Session session);
int RunDetokenize(const DetokenizeOptions& options, Session session);
int RunStatus(const StatusOptions& options, Session session);
int RunTrace(const TraceOptions& options, Session session);

// Reads the prompt's files. INVALID_ARGUMENT is a usage error.
absl::StatusOr<v1::GenerateRequest> BuildGenerateRequest(const GenerateOptions& options,
                                                         Console& console);

// "ringfill: message" on stderr and kUsage.
int ReportUsage(const absl::Status& status, Console& console);

}  // namespace ringfill::cli
