#include <cmath>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/prompt_input.h"

namespace ringfill::cli {

int RunScore(const ScoreOptions& options, Session session) {
  Console& console = session.console;
  v1::ScoreRequest request;
  absl::StatusOr<v1::Prompt> prompt = BuildPrompt(options.prompt, console);
  if (!prompt.ok()) return ReportUsage(prompt.status(), console);
  *request.mutable_prompt() = *std::move(prompt);
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;
  v1::ScoreResponse response;
  exit_code =
      CallUnary(*client, &v1::Ringfill::Stub::Score, request, response, session.interrupt, console);
  if (exit_code != kDone) return exit_code;

  if (options.json) {
    console.out << DumpJson(
                       {{"tokens", response.prompt_tokens()}, {"mean_nll", response.mean_nll()}})
                << '\n';
  } else {
    console.out << absl::StrFormat("tokens      %d\nmean nll    %.6f\nperplexity  %.4f\n",
                                   response.prompt_tokens(), response.mean_nll(),
                                   std::exp(response.mean_nll()));
  }
  return console.FlushOut() ? kDone : kRequestFailed;
}

}  // namespace ringfill::cli
