#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "cli/prompt_input.h"

namespace ringfill::cli {
namespace {

// Takes the events of one stream: shows progress, writes text as it comes (or keeps it for JSON).
class EventSink {
 public:
  EventSink(const GenerateOptions& options, Console& console)
      : options_(options), console_(console), progress_(console, options.progress) {}

  void Take(v1::GenerateEvent event) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kAccepted:
        TakeAccepted(event.accepted());
        break;
      case v1::GenerateEvent::kProgress:
        progress_.Show({.processed_tokens = event.progress().processed_tokens(),
                        .total_tokens = event.progress().total_tokens(),
                        .tokens_per_s = event.progress().tokens_per_s(),
                        .eta_s = event.progress().eta_s()});
        break;
      case v1::GenerateEvent::kToken:
        TakeText(event.token().text());
        if (options_.json) generation_.tokens.push_back(std::move(*event.mutable_token()));
        break;
      case v1::GenerateEvent::kDone:
        TakeText(event.done().text());
        generation_.done = std::move(*event.mutable_done());
        done_ = true;
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;  // a kind of event that this version does not know
    }
  }

  // The stream is over, however it ended.
  void EndText() {
    progress_.Clear();
    if (console_.out_is_terminal && !options_.json && text_written_ && last_ != '\n') {
      console_.out << '\n';
    }
  }

  bool done() const { return done_; }
  const Generation& generation() const { return generation_; }

 private:
  void TakeAccepted(const v1::Accepted& accepted) {
    if (accepted.queue_position() > 0) {
      progress_.ShowNote(
          absl::StrCat("queued behind ", FormatNumbered(accepted.queue_position(), "request")));
    } else {
      progress_.Show({.total_tokens = accepted.prompt_tokens()});
    }
  }

  void TakeText(const std::string& text) {
    progress_.Clear();
    if (text.empty()) return;
    if (options_.json) {
      generation_.text += text;
      return;
    }
    console_.out << text << std::flush;
    text_written_ = true;
    last_ = text.back();
  }

  const GenerateOptions& options_;
  Console& console_;
  ProgressDisplay progress_;
  Generation generation_;
  bool done_ = false;
  bool text_written_ = false;
  char last_ = '\n';
};

int PrintResult(const GenerateOptions& options, const Generation& generation, Console& console) {
  if (options.json) {
    console.out << DumpJson(GenerationJson(generation, options.logprobs.has_value())) << '\n';
  }
  if (!console.FlushOut()) return kRequestFailed;
  if (options.logprobs && !options.json) console.PrintNote("--logprobs shows only with --json");
  if (options.stats) console.err << '\n' << StatsTable(generation.done) << std::flush;
  return kDone;
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> BuildGenerateRequest(const GenerateOptions& options,
                                                         Console& console) {
  v1::GenerateRequest request;
  RF_ASSIGN_OR_RETURN(*request.mutable_prompt(), BuildPrompt(options.prompt, console));
  v1::Sampling& sampling = *request.mutable_sampling();
  if (options.temperature) sampling.set_temperature(*options.temperature);
  if (options.top_k) sampling.set_top_k(*options.top_k);
  if (options.top_p) sampling.set_top_p(*options.top_p);
  if (options.min_p) sampling.set_min_p(*options.min_p);
  if (options.seed) sampling.set_seed(*options.seed);
  v1::Stopping& stopping = *request.mutable_stopping();
  if (options.max_tokens) stopping.set_max_tokens(*options.max_tokens);
  if (options.min_tokens) stopping.set_min_tokens(*options.min_tokens);
  stopping.set_ignore_eos(options.ignore_eos);
  for (const std::string& stop : options.stop) {
    stopping.add_stop(ValidUtf8(stop, "--stop", console));
  }
  stopping.mutable_stop_token_ids()->Assign(options.stop_token_ids.begin(),
                                            options.stop_token_ids.end());
  if (options.logprobs) request.set_logprobs(*options.logprobs);
  return request;
}

int RunGenerate(const GenerateOptions& options, Session session) {
  Console& console = session.console;
  const absl::StatusOr<v1::GenerateRequest> request = BuildGenerateRequest(options, console);
  if (!request.ok()) return ReportUsage(request.status(), console);
  int exit_code = kDone;
  const std::unique_ptr<Client> client =
      ConnectOrReport(session.connection, session.interrupt, console, exit_code);
  if (client == nullptr) return exit_code;

  grpc::ClientContext context;
  client->SetDeadline(context);
  Interrupt::Scope scope(session.interrupt, context);
  EventSink sink(options, console);
  const auto reader = client->stub().Generate(&context, *request);
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    sink.Take(std::move(event));
    if (!console.out.good()) context.TryCancel();
  }
  absl::Status status = client->Ended(reader->Finish());
  sink.EndText();
  if (!console.FlushOut()) return kRequestFailed;
  if (status.ok() && !sink.done()) {
    status = absl::InternalError("the daemon ended the stream without a result");
  }
  if (!status.ok()) return ReportFailure(status, session.interrupt, console);
  return PrintResult(options, sink.generation(), console);
}

}  // namespace ringfill::cli
