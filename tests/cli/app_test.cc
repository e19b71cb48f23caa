#include "cli/app.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/prompt_input.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/test_console.h"

namespace ringfill::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Empty when the arguments parse, else the message.
std::string Parse(std::vector<std::string> arguments, Options& options) {
  std::reverse(arguments.begin(), arguments.end());
  try {
    MakeApp(options)->parse(std::move(arguments));
    return "";
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
}

TEST(App, FillsAGenerateRequest) {
  Options options;
  ASSERT_EQ(Parse({"--address",
                   "10.0.0.1:7",
                   "generate",
                   "--prompt",
                   "Hi",
                   "--max-tokens",
                   "5",
                   "--min-tokens",
                   "2",
                   "--temperature",
                   "0.5",
                   "--top-k",
                   "40",
                   "--top-p",
                   "0.9",
                   "--min-p",
                   "0.1",
                   "--seed",
                   "18446744073709551615",
                   "--stop",
                   "[a,b]",
                   "--stop",
                   "--x",
                   "--stop-token-id",
                   "3",
                   "--logprobs",
                   "8",
                   "--ignore-eos",
                   "--json"},
                  options),
            "");
  EXPECT_EQ(options.connection.address, "10.0.0.1:7");
  EXPECT_TRUE(options.generate.json);
  TestConsole t;
  const v1::GenerateRequest request = BuildGenerateRequest(options.generate, t.console).value();
  EXPECT_EQ(request.prompt().text(), "Hi");
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 40u);
  EXPECT_EQ(request.sampling().top_p(), 0.9f);
  EXPECT_EQ(request.sampling().min_p(), 0.1f);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(request.stopping().max_tokens(), 5u);
  EXPECT_EQ(request.stopping().min_tokens(), 2u);
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_THAT(request.stopping().stop(), ElementsAre("[a,b]", "--x"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(3u));
  EXPECT_EQ(request.logprobs(), 8u);
}

TEST(App, DocumentStartsAreAListOrRepeated) {
  for (const char* command : {"generate", "score"}) {
    Options options;
    ASSERT_EQ(Parse({command, "--document-starts", "0,7", "--prompt", "x", "--document-starts",
                     "4294967295"},
                    options),
              "");
    const PromptOptions& prompt =
        std::string(command) == "generate" ? options.generate.prompt : options.score.prompt;
    TestConsole t;
    EXPECT_THAT(BuildPrompt(prompt, t.console)->document_starts(), ElementsAre(0, 7, 4294967295));
  }
}

TEST(App, DocumentStartsAreDecimalNumbers) {
  for (const std::string bad :
       {"", ",", "0,", "0,,7", "1,-2", "1,b", "0x3", "+3", "1 ,2", "1.5", "4294967296"}) {
    Options options;
    EXPECT_THAT(Parse({"generate", "--prompt", "x", "--document-starts", bad}, options),
                HasSubstr("--document-starts: must be token positions, such as 0,100,250, not \"" +
                          bad + "\""));
  }
}

TEST(App, LeavesUnsetFieldsToTheDaemon) {
  Options options;
  ASSERT_EQ(Parse({"generate", "--prompt", ""}, options), "");
  TestConsole t;
  const v1::GenerateRequest request = BuildGenerateRequest(options.generate, t.console).value();
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_FALSE(request.has_logprobs());
  EXPECT_EQ(request.prompt().input_case(), v1::Prompt::kText) << "an empty prompt is sent as such";
}

TEST(App, TakesValuesThatLookLikeFlags) {
  Options options;
  ASSERT_EQ(Parse({"generate", "--prompt", "--help me"}, options), "");
  EXPECT_EQ(options.generate.prompt.text, "--help me");
  EXPECT_EQ(Parse({"tokenize", "--text", "-5"}, options), "");
  EXPECT_EQ(options.tokenize.prompt.text, "-5");
}

TEST(App, RefusesContradictions) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "subcommand is required"},
      {{"generate"}, "--prompt"},
      {{"generate", "--prompt", "x", "--prompt-file", "y"}, "1 option from"},
      {{"generate", "--prompt", "x", "--system", "y"}, "--chat"},
      {{"generate", "--token-ids-file", "x", "--chat"}, "--chat"},
      {{"generate", "--prompt", "x", "--chat", "--special"}, "--special"},
      {{"generate", "--prompt", "x", "--max-tokens", "-1"}, "must not be negative"},
      {{"generate", "--prompt", "x", "--seed", "-1"}, "must not be negative"},
      {{"generate", "--prompt", "x", "--max-tokens", "4294967296"}, "--max-tokens"},
      {{"generate", "--prompt", "x", "--temperature", "warm"}, "--temperature"},
      {{"generate", "--prompt", "x", "--unknown"}, "--unknown"},
      {{"--timeout", "0", "status"}, "--timeout"},
      {{"score"}, "--prompt"},
      {{"tokenize", "--text", "a", "--file", "b"}, "1 option from"},
      {{"tokenize", "--text", "a", "--system", "b"}, "--chat"},
      {{"tokenize", "--text", "a", "--chat", "--special"}, "--special"},
      {{"tokenize", "--text", "a", "--count", "--json"}, "--count"},
      {{"detokenize"}, "--token-ids-file"},
      {{"generate", "--prompt", "x", "--seed", "18446744073709551616"}, "at most 1844674407370955"},
      {{"generate", "--prompt", "x", "--seed", " -1"}, "must not be negative"},
      {{"--timeout", "nan", "status"}, "--timeout: must be a number of seconds above 0"},
      {{"--timeout", "inf", "status"}, "a number of seconds"},
      {{"--timeout", "1e999", "status"}, "a number of seconds"},
      {{"--timeout", "-1", "status"}, "a number of seconds"},
      {{"--timeout", "5s", "status"}, "a number of seconds"},
      {{"--connect-timeout", "nan", "status"}, "--connect-timeout: must be a number of seconds"},
      {{"trace", "--out", "f", "--seconds", "0"}, "--seconds: must be a number of seconds above 0"},
      {{"trace", "--out", "f", "--seconds", "61"}, "at most 60"},
      {{"trace", "--out", "f", "--seconds", "nan"}, "at most 60"},
      {{"trace", "--seconds", "5"}, "--out"},
      {{"completion", "csh"}, "must be bash, zsh or fish, not csh"},
      {{"completion", "1"}, "must be bash, zsh or fish, not 1"}};
  for (const auto& [arguments, expected] : cases) {
    Options options;
    EXPECT_THAT(Parse(arguments, options), HasSubstr(expected))
        << ::testing::PrintToString(arguments);
  }
}

TEST(App, AddressesAreHostAndPort) {
  for (const char* bad :
       {"", ":", "127.0.0.1", "foo:", ":50051", "foo:0", "foo:99999", "foo:-1", "foo:+1", "foo:12x",
        "::1:50051", "[::1]", "[]:1", "[foo]:1", "http://foo:1", "foo:1/x", "a b:1"}) {
    Options options;
    EXPECT_THAT(Parse({"--address", bad, "status"}, options),
                HasSubstr("--address: must be HOST:PORT, such as 127.0.0.1:50051"))
        << bad;
  }
  for (const char* good : {"localhost:1", "10.0.0.1:65535", "[::1]:50051", "a-b.example:80"}) {
    Options options;
    EXPECT_EQ(Parse({"--address", good, "status"}, options), "") << good;
    EXPECT_EQ(options.connection.address, good);
  }
}

TEST(App, CompletionTakesEachShell) {
  const std::pair<const char*, Shell> shells[] = {
      {"bash", Shell::kBash}, {"zsh", Shell::kZsh}, {"fish", Shell::kFish}};
  for (const auto& [name, shell] : shells) {
    Options options;
    EXPECT_EQ(Parse({"completion", name}, options), "");
    EXPECT_EQ(options.completion.shell, shell) << name;
  }
}

TEST(App, GlobalFlagsMayFollowTheCommand) {
  Options options;
  ASSERT_EQ(Parse({"status", "--json", "--address", "h:1", "--timeout", "2.5"}, options), "");
  EXPECT_EQ(options.connection.address, "h:1");
  EXPECT_EQ(options.connection.timeout_s, 2.5);
}

TEST(App, EveryCommandTeachesWithAnExample) {
  Options options;
  const std::unique_ptr<CLI::App> app = MakeApp(options);
  for (const CLI::App* command : app->get_subcommands({})) {
    EXPECT_THAT(command->help(), HasSubstr("Example")) << command->get_name();
    EXPECT_THAT(command->help(), HasSubstr("ringfill")) << command->get_name();
  }
}

TEST(Completion, KnowsEveryCommandAndFlag) {
  Options options;
  const std::unique_ptr<CLI::App> app = MakeApp(options);
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = CompletionScript(*app, shell);
    for (const char* word : {"generate", "detokenize", "prompt-file", "connect-timeout", "top-p",
                             "skip-special", "seconds", "fish"}) {
      EXPECT_THAT(script, HasSubstr(word));
    }
  }
}

}  // namespace
}  // namespace ringfill::cli
