#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/output_file.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/progress.h"

namespace ringfill::cli {
namespace {

// Where the trace goes: a file, or standard output.
class Sink {
 public:
  explicit Sink(Console& console) : console_(console) {}

  absl::Status Open(const std::string& path) {
    if (path == "-") return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(file_, OutputFile::Create(path));
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& bytes) {
    bytes_ += bytes.size();
    if (file_ != nullptr) return file_->Write(bytes);
    console_.out << bytes;
    return console_.out.good() ? absl::OkStatus()
                               : absl::UnavailableError("standard output cannot be written");
  }

  absl::Status Commit() {
    if (file_ != nullptr) return file_->Commit();
    return console_.FlushOut() ? absl::OkStatus()
                               : absl::UnavailableError("standard output cannot be written");
  }

  size_t bytes() const { return bytes_; }

 private:
  Console& console_;
  std::unique_ptr<OutputFile> file_;
  size_t bytes_ = 0;
};

std::string Left(const TraceOptions& options, const v1::TraceProgress& progress) {
  if (progress.elapsed_s() > options.seconds) return "waiting for the first step to end";
  return absl::StrCat("recording, ",
                      FormatSeconds(std::max(0.0, options.seconds - progress.elapsed_s())),
                      " left, ", FormatNumbered(progress.spans(), "operation"), " so far");
}

// Reads the stream into `sink`. UNAVAILABLE and INTERNAL as well as the daemon's own statuses;
// NOT_FOUND when nothing ran.
absl::Status Receive(const TraceOptions& options, Client& client, Session session, Sink& sink,
                     v1::TraceSummary& summary) {
  v1::TraceRequest request;
  request.set_seconds(options.seconds);
  grpc::ClientContext context;
  client.SetDeadline(context);
  Interrupt::Scope scope(session.interrupt, context);
  ProgressDisplay display(session.console, options.progress);
  const auto reader = client.stub().Trace(&context, request);
  absl::Status written;
  bool done = false;
  for (v1::TraceEvent event; written.ok() && reader->Read(&event);) {
    if (event.has_progress()) {
      display.ShowNote(Left(options, event.progress()));
    } else if (event.has_done()) {
      summary = event.done();
      done = true;
    } else {
      written = sink.Write(event.json());
    }
  }
  if (!written.ok()) context.TryCancel();
  const absl::Status ended = client.Ended(reader->Finish());
  RF_RETURN_IF_ERROR(written);
  RF_RETURN_IF_ERROR(ended);
  if (!done) return absl::InternalError("the daemon ended the stream without a result");
  if (summary.spans() > 0) return absl::OkStatus();
  return absl::NotFoundError(
      "no step ended in that time, so there is no trace: start a request meanwhile, or, when one "
      "runs, wait for the end of its long step");
}

void PrintSummary(const TraceOptions& options, const v1::TraceSummary& summary, size_t bytes,
                  Console& console) {
  if (options.json) {
    console.out << DumpJson({{"file", options.out},
                             {"seconds", summary.seconds()},
                             {"ranks", summary.ranks()},
                             {"spans", summary.spans()},
                             {"dropped", summary.dropped()},
                             {"bytes", bytes}})
                << '\n';
    return;
  }
  if (options.out == "-") return;
  console.out << "wrote " << options.out << ": " << FormatNumbered(summary.spans(), "operation")
              << " of " << FormatNumbered(summary.ranks(), "rank") << " in "
              << FormatSeconds(summary.seconds()) << "; open it at https://ui.perfetto.dev\n";
}

}  // namespace

int RunTrace(const TraceOptions& options, Session session) {
  Console& console = session.console;
  if (options.json && options.out == "-") {
    return ReportUsage(
        absl::InvalidArgumentError("--json and --out - both write to standard output"), console);
  }
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;
  Sink sink(console);
  if (const absl::Status opened = sink.Open(options.out); !opened.ok()) {
    return ReportUsage(opened, console);
  }
  v1::TraceSummary summary;
  absl::Status status = Receive(options, *client, session, sink, summary);
  if (status.ok()) status = sink.Commit();
  if (!status.ok()) return ReportFailure(status, session.interrupt, console);
  if (summary.dropped() > 0) {
    console.PrintNote(absl::StrCat("left out: ", FormatNumbered(summary.dropped(), "operation"),
                                   ", more than the daemon keeps; try fewer --seconds"));
  }
  PrintSummary(options, summary, sink.bytes(), console);
  return console.FlushOut() ? kDone : kRequestFailed;
}

}  // namespace ringfill::cli
