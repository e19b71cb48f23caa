// The ringfill binary against a scripted daemon: exit codes, JSON and text as scripts see them.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ringfill/v1/error_details.pb.h"
#include "tests/cli/child.h"
#include "tests/cli/fake_daemon.h"

namespace ringfill::cli {
namespace {

using ::testing::HasSubstr;

ChildResult RunAlone(std::vector<std::string> arguments, const std::string& input = "",
                     const std::vector<std::string>& environment = {}) {
  return Child(RINGFILL_BINARY, arguments, input, environment).Wait();
}

ChildResult RunAt(const FakeDaemon& daemon, std::vector<std::string> arguments,
                  const std::string& input = "") {
  return RunAlone(std::move(arguments), input, {"RINGFILL_ADDRESS=" + daemon.address()});
}

v1::GenerateEvent TokenEvent(uint32_t id, const std::string& text) {
  v1::GenerateEvent event;
  event.mutable_token()->set_token_id(id);
  event.mutable_token()->set_text(text);
  event.mutable_token()->set_logprob(-1);
  return event;
}

std::vector<v1::GenerateEvent> ShortStory() {
  std::vector<v1::GenerateEvent> events(2);
  events[0].mutable_accepted()->set_prompt_tokens(3);
  events[1].mutable_progress()->set_processed_tokens(3);
  events[1].mutable_progress()->set_total_tokens(3);
  events.push_back(TokenEvent(11, "Once"));
  events.push_back(TokenEvent(12, ""));
  v1::GenerateEvent& last = events.emplace_back();
  last.mutable_done()->set_text(" upon");
  last.mutable_done()->set_finish_reason(v1::FINISH_REASON_LENGTH);
  last.mutable_done()->mutable_usage()->set_completion_tokens(2);
  return events;
}

TEST(Wire, GenerateStreamsText) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  const ChildResult result = RunAt(daemon, {"generate", "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Once upon");
  EXPECT_EQ(result.err, "");
}

TEST(Wire, GenerateStatsAndProgressGoToStderr) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  const ChildResult result = RunAt(daemon, {"generate", "--prompt", "x", "--stats", "--progress"});
  EXPECT_EQ(result.out, "Once upon");
  EXPECT_THAT(result.err, HasSubstr("prefill 3/3 tokens 100 %\n"));
  EXPECT_THAT(result.err, HasSubstr("2 generated"));
}

TEST(Wire, GenerateJsonIsOneObject) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  const ChildResult result = RunAt(daemon, {"generate", "--prompt", "x", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["text"], "Once upon");
  EXPECT_EQ(json["token_ids"], (std::vector<int>{11, 12}));
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_FALSE(json.contains("logprobs"));
}

TEST(Wire, LogprobsThatNobodySeesAreNoted) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  EXPECT_EQ(RunAt(daemon, {"generate", "--prompt", "x", "--logprobs", "1"}).err,
            "ringfill: --logprobs shows only with --json\n");
  EXPECT_EQ(RunAt(daemon, {"generate", "--prompt", "x", "--logprobs", "1", "--json"}).err, "");
}

TEST(Wire, GenerateReadsStandardInput) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  EXPECT_EQ(RunAt(daemon, {"generate", "--prompt-file", "-"}, "a\xff\n").exit_code, 0);
  EXPECT_EQ(daemon.last_generate().prompt().text(), "a\xef\xbf\xbd\n");
  EXPECT_EQ(RunAt(daemon, {"generate", "--token-ids-file", "-"}, "[1,2]").exit_code, 0);
  EXPECT_EQ(daemon.last_generate().prompt().token_ids().ids_size(), 2);
}

TEST(Wire, PromptsOfManyMegabytesPass) {
  FakeDaemon daemon;
  daemon.events = ShortStory();
  EXPECT_EQ(RunAt(daemon, {"generate", "--prompt-file", "-"}, std::string(9 << 20, 'x')).exit_code,
            0);
  EXPECT_EQ(daemon.last_generate().prompt().text().size(), size_t{9} << 20);
}

TEST(Wire, AnswersOfManyMegabytesPass) {
  FakeDaemon daemon;
  daemon.detokenize.set_text(std::string(9 << 20, 'y'));
  const ChildResult result = RunAt(daemon, {"detokenize", "--token-ids-file", "-"}, "[1]");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.size(), size_t{9} << 20);
}

TEST(Wire, AFailedRequestExitsWithOneAndItsStatus) {
  FakeDaemon daemon;
  daemon.generate_status = {grpc::RESOURCE_EXHAUSTED, "the pool holds 100 pages, 200 are needed"};
  daemon.unary_status = {grpc::INVALID_ARGUMENT, "empty prompt"};
  const ChildResult generate = RunAt(daemon, {"generate", "--prompt", "x"});
  EXPECT_EQ(generate.exit_code, 1);
  EXPECT_EQ(generate.out, "");
  EXPECT_EQ(generate.err,
            "ringfill: RESOURCE_EXHAUSTED: the pool holds 100 pages, 200 are needed\n");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"score", "--prompt", ""},
        {"tokenize", "--text", ""},
        {"detokenize", "--token-ids-file", "-"},
        {"status"}}) {
    const ChildResult result = RunAt(daemon, arguments, "[]");
    EXPECT_EQ(result.exit_code, 1) << arguments[0];
    EXPECT_EQ(result.err, "ringfill: INVALID_ARGUMENT: empty prompt\n") << arguments[0];
  }
}

TEST(Wire, SaysWhenToTryAgain) {
  FakeDaemon daemon;
  v1::StatusDetails details;
  details.set_code(grpc::UNAVAILABLE);
  google::protobuf::Any& retry = *details.add_details();
  retry.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  retry.set_value("\x0a\x02\x08\x03");  // retry_delay {seconds: 3}
  daemon.generate_status = {grpc::UNAVAILABLE, "a rank was lost", details.SerializeAsString()};
  daemon.unary_status = daemon.generate_status;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"generate", "--prompt", "x"}, {"score", "--prompt", "x"}}) {
    const ChildResult result = RunAt(daemon, arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err,
              "ringfill: UNAVAILABLE: a rank was lost\nringfill: try again in 3.00 s\n");
  }
  daemon.unary_status = {grpc::UNAVAILABLE, "a rank was lost", "no protobuf"};
  EXPECT_EQ(RunAt(daemon, {"score", "--prompt", "x"}).err,
            "ringfill: UNAVAILABLE: a rank was lost\n");
}

TEST(Wire, AStreamThatBreaksOffIsAFailure) {
  FakeDaemon daemon;
  daemon.events = {TokenEvent(1, "Half")};
  const ChildResult result = RunAt(daemon, {"generate", "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "Half");
  EXPECT_THAT(result.err, HasSubstr("INTERNAL"));
}

TEST(Wire, ScoreTokenizeDetokenizeJson) {
  FakeDaemon daemon;
  daemon.score.set_prompt_tokens(4);
  daemon.score.set_mean_nll(2.5);
  daemon.tokenize.add_token_ids(5);
  daemon.tokenize.add_token_ids(6);
  daemon.detokenize.set_text("hi");
  EXPECT_EQ(RunAt(daemon, {"score", "--prompt", "x", "--json"}).out,
            "{\"tokens\":4,\"mean_nll\":2.5}\n");
  EXPECT_THAT(RunAt(daemon, {"score", "--prompt", "x"}).out, HasSubstr("perplexity"));
  EXPECT_EQ(RunAt(daemon, {"tokenize", "--text", "x", "--json"}).out, "{\"token_ids\":[5,6]}\n");
  EXPECT_EQ(RunAt(daemon, {"tokenize", "--text", "x"}).out, "[5,6]\n");
  EXPECT_EQ(RunAt(daemon, {"tokenize", "--chat", "--text", "x", "--count"}).out, "2\n");
  EXPECT_EQ(RunAt(daemon, {"detokenize", "--token-ids-file", "-"}, "[5]").out, "hi");
  EXPECT_EQ(RunAt(daemon, {"detokenize", "--token-ids-file", "-", "--json"}, "[5]").out,
            "{\"text\":\"hi\"}\n");
}

TEST(Wire, StatusShowsTheDaemon) {
  FakeDaemon daemon;
  EXPECT_THAT(RunAt(daemon, {"status"}).out, HasSubstr("ringfilld 9.9"));
  EXPECT_EQ(nlohmann::json::parse(RunAt(daemon, {"status", "--json"}).out)["model"]["name"],
            "fake");
}

TEST(Wire, UsageErrorsExitWithTwo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{},
        {"generate"},
        {"generate", "--prompt-file", "/nonexistent"},
        {"generate", "--token-ids-file", "-"},
        {"detokenize", "--token-ids-file", "/nonexistent"},
        {"--nonsense"}}) {
    const ChildResult result = RunAlone(arguments, "not json");
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(result.err, HasSubstr("ringfill: "));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Wire, HelpAndVersionNeedNoDaemon) {
  EXPECT_EQ(RunAlone({"--help"}).exit_code, 0);
  EXPECT_EQ(RunAlone({"generate", "--help"}).exit_code, 0);
  EXPECT_THAT(RunAlone({"--version"}).out, HasSubstr("ringfill "));
  EXPECT_EQ(RunAlone({"completion", "bash"}).exit_code, 0);
}

TEST(Wire, AMisspeltCommandIsNamed) {
  EXPECT_THAT(RunAlone({"generat", "--prompt", "x"}).err, HasSubstr("generat"));
  EXPECT_THAT(RunAlone({"--adress", "x", "status"}).err, HasSubstr("--adress"));
}

TEST(Wire, AUsageErrorNamesItsFlagAndTheHelpOfItsCommand) {
  EXPECT_THAT(RunAlone({"--address", "generate", "--prompt", "x"}).err,
              HasSubstr("--address: must be HOST:PORT"));
  EXPECT_THAT(RunAlone({"generate", "--prompt", "x", "--seed", "-1"}).err,
              HasSubstr("\nTry ringfill generate --help.\n"));
  EXPECT_THAT(RunAlone({}).err, HasSubstr("\nTry ringfill --help, or ringfill COMMAND --help.\n"));
}

// What bash offers for the last of `words`, one a line.
std::string BashCompletion(const std::string& words) {
  const std::string script = RunAlone({"completion", "bash"}).out +
                             "compopt() { echo \"compopt $*\"; }\n"
                             "COMP_WORDS=(ringfill " +
                             words +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_ringfill\n"
                             "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const ChildResult result = Child("/bin/bash", {"-c", script}, "").Wait();
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(BashCompletion, OffersFlagsOnlyWhereNoValueIsDue) {
  EXPECT_EQ(BashCompletion("gen"), "generate\n");
  EXPECT_EQ(BashCompletion("generate --max"), "--max-tokens\n");
  EXPECT_EQ(BashCompletion("completion z"), "zsh\n");
  EXPECT_EQ(BashCompletion("generate --max-tokens --"), "\n");
  EXPECT_EQ(BashCompletion("--address ''"), "\n");
  EXPECT_EQ(BashCompletion("generate --prompt-file ''"), "compopt -o default\n\n");
  EXPECT_EQ(BashCompletion("generate --prompt-file = a"), "compopt -o default\n\n");
  EXPECT_EQ(BashCompletion("--address generate sta"), "status\n") << "a value is no command";
}

// A port that is bound but not listened on refuses connections, and nobody else can take it.
TEST(Wire, NoDaemonExitsWithFour) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const ChildResult result = RunAlone({"--address", where, "status"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("no daemon answers at " + where));
  close(fd);
}

TEST(Wire, ASilentPortExitsWithFourInBoundedTime) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(RunAlone({"--address", where, "--connect-timeout", "0.3", "status"}).exit_code, 4);
  close(fd);
}

TEST(Wire, InterruptCancelsTheRequest) {
  FakeDaemon daemon;
  daemon.events = {TokenEvent(1, "Half")};
  daemon.hang = true;
  Child child(RINGFILL_BINARY,
              {"--address", daemon.address(), "--timeout", "30", "generate", "--prompt", "x"}, "");
  ASSERT_TRUE(child.WaitForOut("Half"));
  daemon.hanging.WaitForNotification();
  child.Signal(SIGINT);
  const ChildResult result = child.Wait();
  daemon.cancelled.WaitForNotification();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "Half");
  EXPECT_EQ(result.err, "ringfill: interrupted, the request is cancelled\n");
}

// A listener that takes the connection and never speaks.
TEST(Wire, InterruptWhileConnectingExitsWithOne) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  Child child(RINGFILL_BINARY, {"--address", where, "--connect-timeout", "30", "status"}, "");
  const int connection = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(connection, 0);
  child.Signal(SIGINT);
  const ChildResult result = child.Wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "ringfill: interrupted, the request is cancelled\n");
  close(connection);
  close(fd);
}

TEST(Wire, TimeoutCancelsTheRequest) {
  FakeDaemon daemon;
  daemon.hang = true;
  const ChildResult result = RunAt(daemon, {"--timeout", "0.2", "generate", "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "ringfill: DEADLINE_EXCEEDED: not done within --timeout 0.2 s\n");
}

}  // namespace
}  // namespace ringfill::cli
