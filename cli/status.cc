#include <memory>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"

namespace ringfill::cli {

int RunStatus(const StatusOptions& options, Session session) {
  Console& console = session.console;
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;
  v1::GetStatusResponse status;
  exit_code = CallUnary(*client, &v1::Ringfill::Stub::GetStatus, v1::GetStatusRequest(), status,
                        session.interrupt, console);
  if (exit_code != kDone) return exit_code;
  v1::GetModelResponse model;
  exit_code = CallUnary(*client, &v1::Ringfill::Stub::GetModel, v1::GetModelRequest(), model,
                        session.interrupt, console);
  if (exit_code != kDone) return exit_code;

  if (options.json) {
    console.out << DumpJson(StatusJson(status, model)) << '\n';
  } else {
    console.out << StatusTable(status, model);
  }
  return console.FlushOut() ? kDone : kRequestFailed;
}

}  // namespace ringfill::cli
