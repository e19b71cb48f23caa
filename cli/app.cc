#include "cli/app.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/interrupt.h"
#include "grpc/grpc.h"

namespace ringfill::cli {
namespace {

// HOST:PORT, with an IPv6 host in brackets.
bool IsAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view port = text.substr(colon + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535) {
    return false;
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  return !host.empty() && host.find_first_of("[]/?#@ \t\n\r") == std::string_view::npos &&
         bracketed == (host.find(':') != std::string_view::npos);
}

// CLI11 reads "-1" as a huge unsigned number.
const CLI::Validator kNoMinus(
    [](std::string& text) {
      const size_t first = text.find_first_not_of(" \t\n\v\f\r");
      return first != std::string::npos && text[first] == '-' ? std::string("must not be negative")
                                                              : std::string();
    },
    "", "");

// CLI11 takes what is too large for the largest number.
const CLI::Validator kFits64Bits(
    [](std::string& text) {
      errno = 0;
      (void)std::strtoull(text.c_str(), nullptr, 0);
      return errno == ERANGE ? std::string("must be at most 18446744073709551615") : std::string();
    },
    "", "");

// CLI11's own check lets NaN and infinity pass.
const CLI::Validator kSeconds(
    [](std::string& text) {
      double seconds = 0;
      const bool good = absl::SimpleAtod(text, &seconds) && std::isfinite(seconds) && seconds > 0;
      return good ? std::string() : std::string("must be a number of seconds above 0");
    },
    "", "");

// As the daemon checks, but before a call.
const CLI::Validator kTraceSeconds(
    [](std::string& text) {
      double seconds = 0;
      const bool good = absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds <= 60;
      return good ? std::string() : std::string("must be a number of seconds above 0, at most 60");
    },
    "", "");

const CLI::Validator kAddress(
    [](std::string& text) {
      return IsAddress(text) ? std::string()
                             : std::string("must be HOST:PORT, such as 127.0.0.1:50051");
    },
    "", "");

const CLI::Validator kShellName(
    [](std::string& text) {
      const std::map<std::string, Shell> shells = {
          {"bash", Shell::kBash}, {"zsh", Shell::kZsh}, {"fish", Shell::kFish}};
      const auto found = shells.find(text);
      if (found == shells.end()) return "must be bash, zsh or fish, not " + text;
      text = std::to_string(static_cast<int>(found->second));  // as CLI11 reads enumerations
      return std::string();
    },
    "", "");

// In decimal digits alone; CLI11 reads 0x3 and 010 too, and takes an empty list for none.
void ReadDocumentStarts(const std::string& list, std::vector<uint32_t>& starts) {
  for (const absl::string_view piece : absl::StrSplit(list, ',')) {
    const bool digits = std::all_of(piece.begin(), piece.end(), absl::ascii_isdigit);
    uint32_t start = 0;
    if (!digits || !absl::SimpleAtoi(piece, &start)) {
      throw CLI::ValidationError(
          "--document-starts",
          absl::StrCat("must be token positions, such as 0,100,250, not \"", list, "\""));
    }
    starts.push_back(start);
  }
}

// How the text of `prompt` becomes tokens; returns --chat.
CLI::Option& AddTextFlags(CLI::App& command, PromptOptions& prompt) {
  CLI::Option& chat = *command.add_flag("--chat", prompt.chat,
                                        "Put it in the model's template as a user's message");
  command.add_option("--system", prompt.system, "The system message before it")
      ->type_name("TEXT")
      ->needs(&chat);
  command.add_flag("--special", prompt.special, "Recognise special tokens written in the text")
      ->excludes(&chat);
  return chat;
}

void AddPromptFlags(CLI::App& command, PromptOptions& prompt) {
  CLI::Option_group& input = *command.add_option_group("Prompt", "Exactly one of these");
  input.add_option("--prompt", prompt.text, "The prompt's text")->type_name("TEXT");
  input.add_option("--prompt-file", prompt.file, "A text file; - is standard input")
      ->type_name(kFileType);
  CLI::Option& ids = *input.add_option("--token-ids-file", prompt.token_ids_file,
                                       "JSON: an array of token ids, or an object with token_ids");
  ids.type_name(kFileType);
  input.set_help_flag("");
  input.require_option(1);
  AddTextFlags(command, prompt).excludes(&ids);
  command.get_option("--special")->excludes(&ids);
  command
      .add_option_function<std::vector<std::string>>(
          "--document-starts",
          [&prompt](const std::vector<std::string>& lists) {
            for (const std::string& list : lists) {
              ReadDocumentStarts(list, prompt.document_starts);
            }
          },
          "Token positions, such as 0,100,250, at which documents begin that do not see each "
          "other; new tokens continue the last")
      ->type_name("P,P,...")
      ->allow_extra_args(false);
}

void AddSamplingFlags(CLI::App& command, GenerateOptions& options) {
  command.add_option("--max-tokens", options.max_tokens, "At most so many new tokens [256]")
      ->type_name("N")
      ->check(kNoMinus);
  command.add_option("--min-tokens", options.min_tokens, "At least so many")
      ->type_name("N")
      ->check(kNoMinus);
  command.add_option("--temperature", options.temperature, "0 takes the likeliest token [0]")
      ->type_name("X");
  command.add_option("--top-k", options.top_k, "Draw among the K likeliest [off]")
      ->type_name("K")
      ->check(kNoMinus);
  command
      .add_option("--top-p", options.top_p, "Draw among those that make up this probability [1]")
      ->type_name("X");
  command.add_option("--min-p", options.min_p, "Drop those below this share of the likeliest [0]")
      ->type_name("X");
  command.add_option("--seed", options.seed, "Makes the draw repeatable")
      ->type_name("N")
      ->check(kNoMinus)
      ->check(kFits64Bits);
  command.add_option("--stop", options.stop, "End before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      .add_option("--stop-token-id", options.stop_token_ids, "End at this token; may be repeated")
      ->type_name("ID")
      ->allow_extra_args(false)
      ->check(kNoMinus);
  command.add_flag("--ignore-eos", options.ignore_eos, "Go on past the model's end tokens");
  command.add_option("--logprobs", options.logprobs, "With --json: the K likeliest of each step")
      ->type_name("K")
      ->check(kNoMinus);
}

void AddGenerate(CLI::App& app, GenerateOptions& options) {
  CLI::App& command = *app.add_subcommand("generate", "Read a prompt and write what follows");
  AddPromptFlags(command, options.prompt);
  AddSamplingFlags(command, options);
  command.add_flag("--json", options.json, "Print one JSON object at the end instead of text");
  command.add_flag("--stats", options.stats, "Print a table of tokens and times on stderr");
  CLI::Option& progress = *command.add_flag_callback(
      "--progress", [&options] { options.progress = ProgressMode::kAlways; },
      "Show prefill progress even when stderr is no terminal");
  command
      .add_flag_callback(
          "--no-progress", [&options] { options.progress = ProgressMode::kNever; },
          "Do not show it at all")
      ->excludes(&progress);
  command.footer(
      "Examples:\n"
      "  ringfill generate --prompt 'Once upon a time' --max-tokens 40 --ignore-eos\n"
      "  ringfill generate --chat --prompt-file report.txt --stats\n"
      "  (cat report.txt; echo 'Summarise the report.') | ringfill generate --chat --prompt-file "
      "-");
}

void AddTrace(CLI::App& app, TraceOptions& options) {
  CLI::App& command =
      *app.add_subcommand("trace", "Record what every rank does, for ui.perfetto.dev");
  command.add_option("--seconds", options.seconds, "How long to record")
      ->type_name("SECONDS")
      ->check(kTraceSeconds)
      ->capture_default_str();
  command.add_option("--out", options.out, "The file to write; - is standard output")
      ->type_name(kFileType)
      ->required();
  command.add_flag("--json", options.json,
                   "Print {\"file\":F,\"seconds\":X,\"ranks\":N,\"spans\":N,\"dropped\":N,"
                   "\"bytes\":N}");
  command.add_flag_callback(
      "--no-progress", [&options] { options.progress = ProgressMode::kNever; },
      "Do not show progress on a terminal");
  command.footer(
      "Open the file at https://ui.perfetto.dev (it stays on your machine) or in\n"
      "chrome://tracing. Each rank is a process with three lanes: what it computed, what it sent\n"
      "and received meanwhile, and where it took memory. Click on an operation to see its layer,\n"
      "ring round, bytes and strategy. A gap in the compute lane below a long transfer is\n"
      "communication that was not hidden. Requests have rows of their own.\n"
      "Recording begins with the next step of the engine, and a step shows when it has ended; "
      "while\n"
      "none has, recording goes on for up to a minute more. An idle daemon has nothing to show,\n"
      "and then no file is written and the exit code is 1: start a request meanwhile.\n\n"
      "Example:\n  ringfill trace --seconds 5 --out trace.json");
}

void AddOthers(CLI::App& app, Options& options) {
  CLI::App& score = *app.add_subcommand("score", "How likely the model finds a text");
  AddPromptFlags(score, options.score.prompt);
  score.add_flag("--json", options.score.json, "Print {\"tokens\":N,\"mean_nll\":X}");
  score.footer("Example:\n  ringfill score --prompt-file report.txt");

  CLI::App& tokenize = *app.add_subcommand("tokenize", "Text to token ids");
  CLI::Option_group& input = *tokenize.add_option_group("Input", "Exactly one of these");
  input.add_option("--text", options.tokenize.prompt.text, "The text")->type_name("TEXT");
  input.add_option("--file", options.tokenize.prompt.file, "A text file; - is standard input")
      ->type_name(kFileType);
  input.set_help_flag("");
  input.require_option(1);
  AddTextFlags(tokenize, options.tokenize.prompt);
  CLI::Option& count =
      *tokenize.add_flag("--count", options.tokenize.count, "Print only how many there are");
  tokenize.add_flag("--json", options.tokenize.json, "Print {\"token_ids\":[...]}")
      ->excludes(&count);
  tokenize.footer(
      "Examples:\n"
      "  ringfill tokenize --text 'Hello, world'\n"
      "  ringfill tokenize --chat --count --file report.txt");

  CLI::App& detokenize = *app.add_subcommand("detokenize", "Token ids to text");
  detokenize
      .add_option("--token-ids-file", options.detokenize.token_ids_file,
                  "JSON: an array of token ids, or an object with token_ids; - is standard input")
      ->type_name(kFileType)
      ->required();
  detokenize.add_flag("--skip-special", options.detokenize.skip_special,
                      "Leave out special tokens");
  detokenize.add_flag("--json", options.detokenize.json, "Print {\"text\":\"...\"}");
  detokenize.footer("Example:\n  echo '[504, 5345]' | ringfill detokenize --token-ids-file -");

  CLI::App& status =
      *app.add_subcommand("status", "The model, the queue, the ranks and their pages");
  status.add_flag("--json", options.status.json, "Print one JSON object");
  status.footer("Example:\n  ringfill --address 127.0.0.1:50051 status");

  AddTrace(app, options.trace);

  CLI::App& completion =
      *app.add_subcommand(kCompletionCommand, "Print a completion script for a shell");
  completion.add_option("shell", options.completion.shell, "bash, zsh or fish")
      ->type_name("SHELL")
      ->required()
      ->transform(kShellName);
  completion.footer("Example:\n  source <(ringfill completion bash)");
}

int RunCommand(const CLI::App& app, const Options& options, Session session) {
  if (app.got_subcommand("generate")) return RunGenerate(options.generate, session);
  if (app.got_subcommand("score")) return RunScore(options.score, session);
  if (app.got_subcommand("tokenize")) return RunTokenize(options.tokenize, session);
  if (app.got_subcommand("detokenize")) return RunDetokenize(options.detokenize, session);
  if (app.got_subcommand("status")) return RunStatus(options.status, session);
  if (app.got_subcommand("trace")) return RunTrace(options.trace, session);
  session.console.out << CompletionScript(app, options.completion.shell);
  return session.console.FlushOut() ? kDone : kRequestFailed;
}

// CLI11 says of a misspelt command only that one is required.
std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  const bool command_missing =
      error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
      app.get_subcommands().empty();
  if (!command_missing || unknown.empty()) return error.what();
  return "unknown command or flag: " + unknown.front();
}

std::string HelpHint(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (commands.empty()) return "Try ringfill --help, or ringfill COMMAND --help.";
  return "Try ringfill " + commands.front()->get_name() + " --help.";
}

}  // namespace

std::unique_ptr<CLI::App> MakeApp(Options& options) {
  auto app = std::make_unique<CLI::App>(
      "ringfill: asks a ringfilld daemon about long prompts over gRPC", "ringfill");
  app->get_formatter()->column_width(32);
  app->require_subcommand(1);
  app->fallthrough();
  app->add_option("--address", options.connection.address, "Where the daemon listens")
      ->type_name("HOST:PORT")
      ->envname("RINGFILL_ADDRESS")
      ->check(kAddress)
      ->capture_default_str();
  app->add_option("--connect-timeout", options.connection.connect_timeout_s,
                  "Give up when no daemon answers for so long")
      ->type_name("SECONDS")
      ->check(kSeconds)
      ->capture_default_str();
  app->add_option("--timeout", options.connection.timeout_s, "Cancel a request that takes longer")
      ->type_name("SECONDS")
      ->check(kSeconds);
  app->set_version_flag("--version", "ringfill " RINGFILL_VERSION);
  app->footer(
      "Exit codes: 0 done, 1 the request failed, 2 usage, 4 no daemon answers.\n"
      "ringfill COMMAND --help shows a command's flags and an example.");
  AddGenerate(*app, options.generate);
  AddOthers(*app, options);
  return app;
}

int ReportUsage(const absl::Status& status, Console& console) {
  console.PrintNote(std::string(status.message()));
  return kUsage;
}

int RunApp(std::vector<std::string> arguments, Console& console) {
  Options options;
  const std::unique_ptr<CLI::App> app = MakeApp(options);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app->parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app->exit(error, console.out, console.err);
      return console.FlushOut() ? kDone : kRequestFailed;
    }
    console.PrintNote(UsageMessage(*app, error));
    console.err << HelpHint(*app) << std::endl;
    return kUsage;
  }
  Interrupt interrupt;
  // Held until the process ends: taking the library down can wait 10 s for its own objects.
  grpc_init();
  return RunCommand(*app, options,
                    {.connection = options.connection, .interrupt = interrupt, .console = console});
}

}  // namespace ringfill::cli
