// What a command line asks for, as plain values. Filled by app.h, read by one file per command.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringfill::cli {

// The process's exit codes. Scripts rely on them.
enum ExitCode : int {
  kDone = 0,
  kRequestFailed = 1,  // the gRPC status is on stderr
  kUsage = 2,
  kUnreachable = 4,
};

struct ConnectionOptions {
  std::string address = "127.0.0.1:50051";
  double connect_timeout_s = 5;  // until the daemon answers at all
  double timeout_s = 0;          // of the request; 0: none
};

// Exactly one of text, file and token_ids_file is set. "-" as a file is standard input.
struct PromptOptions {
  std::optional<std::string> text;
  std::optional<std::string> file;
  std::optional<std::string> token_ids_file;
  bool chat = false;
  std::optional<std::string> system;  // only with chat
  bool special = false;               // recognise special tokens written out in the text
  std::vector<uint32_t> document_starts;
};

enum class ProgressMode { kAuto, kAlways, kNever };  // kAuto: on a terminal

struct GenerateOptions {
  PromptOptions prompt;
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  std::optional<uint32_t> logprobs;
  bool ignore_eos = false;
  bool json = false;
  bool stats = false;
  ProgressMode progress = ProgressMode::kAuto;
};

struct ScoreOptions {
  PromptOptions prompt;
  bool json = false;
};

struct TokenizeOptions {
  PromptOptions prompt;  // text or file
  bool count = false;    // print how many, not which
  bool json = false;
};

struct DetokenizeOptions {
  std::string token_ids_file;
  bool skip_special = false;
  bool json = false;
};

struct StatusOptions {
  bool json = false;
};

struct TraceOptions {
  double seconds = 5;
  std::string out;  // "-": standard output
  bool json = false;
  ProgressMode progress = ProgressMode::kAuto;
};

enum class Shell { kBash, kZsh, kFish };

struct CompletionOptions {
  Shell shell = Shell::kBash;
};

struct Options {
  ConnectionOptions connection;
  GenerateOptions generate;
  ScoreOptions score;
  TokenizeOptions tokenize;
  DetokenizeOptions detokenize;
  StatusOptions status;
  TraceOptions trace;
  CompletionOptions completion;
};

}  // namespace ringfill::cli
