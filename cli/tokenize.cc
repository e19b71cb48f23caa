#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/prompt_input.h"

namespace ringfill::cli {

int RunTokenize(const TokenizeOptions& options, Session session) {
  Console& console = session.console;
  v1::TokenizeRequest request;
  absl::StatusOr<v1::Prompt> prompt = BuildPrompt(options.prompt, console);
  if (!prompt.ok()) return ReportUsage(prompt.status(), console);
  *request.mutable_prompt() = *std::move(prompt);
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;
  v1::TokenizeResponse response;
  exit_code = CallUnary(*client, &v1::Ringfill::Stub::Tokenize, request, response,
                        session.interrupt, console);
  if (exit_code != kDone) return exit_code;

  if (options.count) {
    console.out << response.token_ids_size() << '\n';
    return console.FlushOut() ? kDone : kRequestFailed;
  }
  const nlohmann::ordered_json ids =
      std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
  console.out << DumpJson(options.json ? nlohmann::ordered_json{{"token_ids", ids}} : ids) << '\n';
  return console.FlushOut() ? kDone : kRequestFailed;
}

int RunDetokenize(const DetokenizeOptions& options, Session session) {
  Console& console = session.console;
  PromptOptions input;
  input.token_ids_file = options.token_ids_file;
  const absl::StatusOr<v1::Prompt> prompt = BuildPrompt(input, console);
  if (!prompt.ok()) return ReportUsage(prompt.status(), console);
  v1::DetokenizeRequest request;
  *request.mutable_token_ids() = prompt->token_ids().ids();
  request.set_skip_special(options.skip_special);
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;
  v1::DetokenizeResponse response;
  exit_code = CallUnary(*client, &v1::Ringfill::Stub::Detokenize, request, response,
                        session.interrupt, console);
  if (exit_code != kDone) return exit_code;

  const std::string& text = response.text();
  if (options.json) {
    console.out << DumpJson({{"text", text}}) << '\n';
  } else {
    console.out << text;
    if (console.out_is_terminal && !text.empty() && text.back() != '\n') console.out << '\n';
  }
  return console.FlushOut() ? kDone : kRequestFailed;
}

}  // namespace ringfill::cli
