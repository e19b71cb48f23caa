// ringfilld as scripts see it: options, exit codes, the ready line, signals, logs.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/app/file_limit.h"
#include "server/app/version.h"
#include "server/text.h"
#include "tests/server/eventually.h"
#include "tests/server/ringfilld.h"
#include "tests/server/test_daemon.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<nlohmann::json> LogLines(const std::string& errors) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(errors);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

TEST(CommandLineTest, HelpAndVersionGoToStdout) {
  const Exit help = RunRingfilld({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("kv.page_tokens = 64"));
  EXPECT_THAT(help.out, HasSubstr("ringfilld --config"));
  const Exit version = RunRingfilld({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, Concat("ringfilld ", Version(), "\n"));
}

TEST(CommandLineTest, BadUsageAndConfigurationExitWith2) {
  const std::string yaml = testing::TempDir() + "bad.yaml";
  std::ofstream(yaml) << "ranks:\n  count: many\n";
  const std::string fifo = testing::TempDir() + "config.fifo";
  ASSERT_TRUE(mkfifo(fifo.c_str(), 0600) == 0 || errno == EEXIST);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "--config FILE"},
      {{"--bad"}, "--bad"},
      {{"--config"}, "--config"},
      {{"--config", "/nonexistent.yaml"}, "/nonexistent.yaml"},
      {{"--config", fifo}, fifo + ": not a regular file"},
      {{"--config", "/dev/zero"}, "/dev/zero: not a regular file"},
      {{"--config", yaml}, yaml + ":2: ranks.count"},
      {{"--config", yaml, "--check-config"}, yaml + ":2: ranks.count"},
      {{"--config", yaml, "--print-config"}, yaml + ":2: ranks.count"},
      {{"--set", "ranks.count=2"}, "model.path is not set"},
      {{"--set", "ranks.cuont=2"}, "did you mean \"ranks.count\""},
      {{"--set", "model.path=${RINGFILL_UNSET_VARIABLE}"}, "RINGFILL_UNSET_VARIABLE"},
      {{"--set", "model.path=m", "stray"}, "stray"},
  };
  for (const auto& [arguments, says] : cases) {
    const Exit result = RunRingfilld(arguments);
    EXPECT_EQ(result.code, 2) << says;
    EXPECT_EQ(result.out, "") << says;
    EXPECT_THAT(result.err, HasSubstr(says));
  }
}

TEST(CommandLineTest, WhatDoesNotFitTheModelOrTheMachineExitsWith2) {
  const std::string model = "model.path=" + TinyModelPath();
  const std::string fifo = testing::TempDir() + "trace.fifo";  // that nobody reads
  ASSERT_TRUE(mkfifo(fifo.c_str(), 0600) == 0 || errno == EEXIST);
  const std::vector<std::string> base = {"--set", model, "--set", "server.listen=127.0.0.1:0"};
  const std::pair<std::string, std::string> cases[] = {
      {"server.listen=203.0.113.7:1", "server.listen"},
      {"metrics.listen=203.0.113.7:1",
       "metrics.listen: cannot listen on 203.0.113.7:1: Cannot assign requested address"},
      {"trace.path=" + fifo, fifo + " is there and is no trace"},
  };
  for (const auto& [setting, says] : cases) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), {"--set", setting});
    const Exit result = RunRingfilld(arguments);
    EXPECT_EQ(result.code, 2) << setting;
    EXPECT_EQ(result.out, "") << setting;
    EXPECT_THAT(result.err, HasSubstr(says));
    LogLines(result.err);
  }
}

TEST(CommandLineTest, ModelsThatCannotBeLoadedExitWith3) {
  for (const std::string& path :
       {std::string("/nonexistent.gguf"), std::string("/tmp"),
        WriteTempFile(std::vector<std::byte>(100, std::byte{'G'}), ".gguf")}) {
    const Exit result = RunRingfilld({"--set", "model.path=" + path});
    EXPECT_EQ(result.code, 3) << path;
    EXPECT_EQ(result.out, "");
    const std::vector<nlohmann::json> lines = LogLines(result.err);
    ASSERT_EQ(lines.size(), 1u) << result.err;
    EXPECT_THAT(lines[0]["error"].get<std::string>(), HasSubstr(path));
  }
}

TEST(CommandLineTest, ConfigCanBeCheckedAndPrinted) {
  EXPECT_EQ(RunRingfilld({"--set", "model.path=x", "--check-config"}).code, 0);
  const Exit printed = RunRingfilld({"--print-config", "--set", "ranks.count=5"});
  EXPECT_EQ(printed.code, 0);
  Config config = DefaultConfig();
  ASSERT_TRUE(ApplyConfigYaml(printed.out, "printed", config).ok());
  EXPECT_EQ(config.ranks_count, 5);
  EXPECT_EQ(printed.out, PrintConfig(config));
}

TEST(ServeTest, PrintsOneLineAndStopsOnEachSignal) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Ringfilld daemon;
    EXPECT_THAT(daemon.ready(), StartsWith("ready grpc=127.0.0.1:"));
    EXPECT_THAT(daemon.ready(), HasSubstr(" metrics=127.0.0.1:"));
    EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(10), 2)).status.ok());
    daemon.process().Signal(signal);
    EXPECT_EQ(daemon.process().Wait(), 0);
    EXPECT_EQ(daemon.process().rest_of_output(), "");
    const std::vector<nlohmann::json> lines = LogLines(daemon.process().Errors());
    const auto says = [](const char* message) {
      return [message](const nlohmann::json& line) { return line["message"] == message; };
    };
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(), says("the ranks were measured")), 1);
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(), says("started")), 1);
    EXPECT_EQ(lines.back()["message"], "stopped");
  }
}

// Whatever it waits for.
TEST(ServeTest, ASignalBeforeItIsReadyEndsIt) {
  const std::string secret = testing::TempDir() + "early.secret";
  std::ofstream(secret) << "0123456789abcdef0123456789abcdef";
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  for (const int signal : {SIGTERM, SIGINT}) {
    Subprocess daemon(ServeCommand({"ring.transport=processes", "ring.start_workers=false",
                                    "ring.secret_file=" + secret, "ring.join_timeout_s=300"}));
    ASSERT_TRUE(
        Eventually([&] { return daemon.Errors().find("awaiting workers") != std::string::npos; }));
    daemon.Signal(signal);
    EXPECT_EQ(daemon.Wait(), 0);
    EXPECT_EQ(daemon.rest_of_output(), "");
    EXPECT_EQ(LogLines(daemon.Errors()).back()["message"], "stopped before it was ready");
  }
}

TEST(ServeTest, ASecondDaemonOnTheSamePortExitsWith2) {
  Ringfilld daemon;
  const Exit second = RunRingfilld({"--set", "model.path=" + TinyModelPath(), "--set",
                                    "server.listen=" + daemon.grpc_address()});
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr(daemon.grpc_address()));
  const Exit metrics =
      RunRingfilld({"--set", "model.path=" + TinyModelPath(), "--set", "server.listen=127.0.0.1:0",
                    "--set", "metrics.listen=" + daemon.metrics_address()});
  EXPECT_EQ(metrics.code, 2);
  EXPECT_THAT(metrics.err, HasSubstr("metrics.listen: cannot listen on " +
                                     daemon.metrics_address() + ": Address already in use"));
}

TEST(ServeTest, RaisesItsLimitOfOpenFilesAndSaysWhenItIsLow) {
  const auto errors_under = [](const std::string& limits) {
    const Exit exit = RunRingfilld({"--set", "model.path=/nonexistent.gguf"}, limits);
    EXPECT_EQ(exit.code, 3);
    return exit.err;
  };
  const std::string low = errors_under("ulimit -Sn 64 && ulimit -Hn 1000");
  EXPECT_THAT(low, HasSubstr("LimitNOFILE"));
  EXPECT_EQ(LogLines(low).front()["limit"], 1000);
  EXPECT_THAT(errors_under("ulimit -Sn 64 && ulimit -Hn 4096"), Not(HasSubstr("LimitNOFILE")));
}

// Not even a log line can be written then.
TEST(CommandLineTest, AFileThatMayNotGrowEndsNoProcess) {
  const std::vector<std::string> model = {"--set", "model.path=/nonexistent.gguf"};
  const auto code = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), model.begin(), model.end());
    return RunRingfilld(arguments, "ulimit -f 0").code;
  };
  const std::string secret = WriteTempFile(std::vector<std::byte>(40, std::byte{'s'}), ".secret");
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  EXPECT_EQ(code({}), 3);
  EXPECT_EQ(code({"worker", "--leader", "127.0.0.1:1", "--rank", "0", "--secret-file", secret}), 3);
  for (const char* leader : {"nohost", "", ":7000", "127.0.0.1:99999", "127.0.0.1:0"}) {
    EXPECT_EQ(code({"worker", "--leader", leader, "--rank", "0", "--secret-file", secret}), 2)
        << leader;
  }
  EXPECT_EQ(code({"replay", "--plan-log", "/nonexistent.plan"}), 4);
}

TEST(ServeTest, MessagesThatAreNotUtf8LeaveOnlyJsonInTheLog) {
  Ringfilld daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(3), 1);
  request.set_request_id("caf\xe9-canary");
  EXPECT_FALSE(Generate(daemon.stub(), request).status.ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  const std::string errors = daemon.process().Errors();
  int from_protobuf = 0;
  for (const nlohmann::json& line : LogLines(errors))
    from_protobuf += line["message"] == "protobuf";
  EXPECT_GT(from_protobuf, 0);
  EXPECT_THAT(errors, Not(HasSubstr("canary")));
}

TEST(ServeTest, LogsRequestsButNeverTheirTexts) {
  Ringfilld daemon({"log.level=debug"});
  const std::string canary = "xyzzy-canary-7531";
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("tell me about " + canary);
  request.mutable_stopping()->set_max_tokens(5);
  request.mutable_stopping()->add_stop(canary);
  request.set_request_id("seen-in-logs");
  const Generated out = Generate(daemon.stub(), request);
  ASSERT_TRUE(out.status.ok());
  request.mutable_sampling()->set_top_p(9);
  EXPECT_FALSE(Generate(daemon.stub(), request).status.ok());
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_prompt() = request.prompt();
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(daemon.stub().Tokenize(&context, tokenize, &tokens).ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  const std::string errors = daemon.process().Errors();
  EXPECT_THAT(errors, Not(HasSubstr(canary)));
  int finished = 0;
  for (const nlohmann::json& line : LogLines(errors)) {
    if (line["message"] != "request finished" || line["outcome"] != "ok") continue;
    ++finished;
    EXPECT_EQ(line["request_id"], "seen-in-logs");
    EXPECT_EQ(line["completion_tokens"], 5);
    for (const char* key : {"prompt_tokens", "queue_ms", "prefill_ms", "ttft_ms", "decode_ms"}) {
      EXPECT_TRUE(line.contains(key)) << key;
    }
  }
  EXPECT_EQ(finished, 1);
}

TEST(ServeTest, LogsNameTheCallersTrace) {
  constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
  constexpr char kParent[] = "b7ad6b7169203331";
  Ringfilld daemon;
  const auto call = [&](const std::string& id, const std::vector<std::string>& traceparents) {
    v1::GenerateRequest request = GenerateOf(TokenPrompt(20), 2);
    request.set_request_id(id);
    grpc::ClientContext context;
    for (const std::string& value : traceparents) context.AddMetadata("traceparent", value);
    const auto reader = daemon.stub().Generate(&context, request);
    for (v1::GenerateEvent event; reader->Read(&event);) {
    }
    EXPECT_TRUE(reader->Finish().ok());
  };
  const std::string good = std::string("00-") + kTrace + "-" + kParent + "-01";
  call("traced", {good});
  call("none", {});
  call("bad", {"00-00000000000000000000000000000000-b7ad6b7169203331-01"});
  call("twice", {good, good});
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  int finished = 0;
  for (const nlohmann::json& line : LogLines(daemon.process().Errors())) {
    if (line["message"] != "request finished") continue;
    ++finished;
    const bool traced = line["request_id"] == "traced";
    EXPECT_EQ(line.contains("trace_id"), traced) << line;
    EXPECT_EQ(line.contains("parent_id"), traced) << line;
    if (!traced) continue;
    EXPECT_EQ(line["trace_id"], kTrace);
    EXPECT_EQ(line["parent_id"], kParent);
  }
  EXPECT_EQ(finished, 4);
}

// Streams until its call ends; returns the status.
grpc::Status Stream(const std::string& address, int max_tokens) {
  const auto stub = TestDaemon::Connect(address);
  return Generate(*stub, GenerateOf(TokenPrompt(100), max_tokens)).status;
}

TEST(ServeTest, TermUnderLoadLetsRunningRequestsFinish) {
  Ringfilld daemon;
  constexpr int kClients = 8;
  std::vector<grpc::Status> statuses(kClients);
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { statuses[i] = Stream(daemon.grpc_address(), 2000); });
  }
  v1::GetStatusResponse status;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return daemon.stub().GetStatus(&context, {}, &status).ok() && status.running() == kClients;
  }));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  for (std::thread& client : clients) client.join();
  for (const grpc::Status& ended : statuses) EXPECT_TRUE(ended.ok()) << ended.error_message();
}

// The last log line with this message, once it is there.
nlohmann::json AwaitLogLine(const Subprocess& process, const std::string& message) {
  nlohmann::json found;
  EXPECT_TRUE(Eventually([&] {
    for (const nlohmann::json& line : LogLines(process.Errors())) {
      if (line.value("message", "") == message) found = line;
    }
    return !found.is_null();
  })) << message;
  return found;
}

// Nobody reads its log, and the pipe is full.
TEST(ServeTest, AThirdSignalEndsADaemonThatIsStuck) {
  const std::string fifo = testing::TempDir() + "log.fifo";
  ASSERT_TRUE(mkfifo(fifo.c_str(), 0600) == 0 || errno == EEXIST);
  Ringfilld daemon({"log.level=debug"}, "exec 2<>" + fifo);
  const auto asks = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
    v1::GetModelResponse answer;
    return daemon.stub().GetModel(&context, {}, &answer).ok();
  };
  int asked = 0;
  while (asked < 5000 && asks()) ++asked;
  ASSERT_LT(asked, 5000) << "its log takes more than a pipe holds";
  // Those that come before the last was taken count as one, hence more than three.
  for (int i = 0; i < 10; ++i) {
    daemon.process().Signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(daemon.process().Wait(), 128 + SIGTERM);
}

TEST(StandardFilesTest, ClosedOnesAreFilled) {
  EXPECT_EXIT(
      {
        for (const int fd : {STDIN_FILENO, STDERR_FILENO}) close(fd);
        FillStandardFiles();
        char target[32] = {};
        bool filled = true;
        for (const char* fd : {"/proc/self/fd/0", "/proc/self/fd/2"}) {
          filled &= readlink(fd, target, sizeof(target)) == 9 &&
                    std::string_view(target, 9) == "/dev/null";
        }
        _exit(filled ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ServeTest, SighupReadsTheConfigurationAgain) {
  const std::string file = testing::TempDir() + "reload.yaml";
  std::ofstream(file) << "log: {level: error}\n";
  std::vector<std::string> command = ServeCommand({});
  command.insert(command.end(), {"--config", file});
  Subprocess daemon(command);
  ASSERT_THAT(daemon.ReadLine(), StartsWith("ready"));
  EXPECT_EQ(daemon.Errors(), "");
  // ranks.count is set on the command line too, which goes before the file.
  std::ofstream(file) << "log: {level: debug}\nranks: {count: 7}\nkv: {decode_reserve: 7}\n";
  daemon.Signal(SIGHUP);
  const nlohmann::json line = AwaitLogLine(daemon, "the configuration was read again");
  EXPECT_EQ(line["log.level"], "debug");
  EXPECT_EQ(line["wait_for_a_restart"], nlohmann::json::array({"kv.decode_reserve"}));
  std::ofstream(file) << "log: {level: warning}\nranks: {cuont: 7}\n";
  daemon.Signal(SIGHUP);
  EXPECT_THAT(AwaitLogLine(daemon, "the configuration cannot be read again; nothing changes")
                  .value("error", ""),
              HasSubstr("reload.yaml:2"));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0);
  AwaitLogLine(daemon, "stopped");  // at info: the level is still debug
}

TEST(ServeTest, ASecondSignalCutsTheDrainShort) {
  Ringfilld daemon({"server.drain_timeout_s=3600", "server.outbox_events=8"});
  // A client that does not read would hold the drain up for the whole hour.
  v1::GenerateRequest request = GenerateOf(TokenPrompt(20), 10000);
  request.set_logprobs(64);
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, request);
  v1::GetStatusResponse status;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext poll;
    return daemon.stub().GetStatus(&poll, {}, &status).ok() && status.running() == 1;
  }));
  daemon.process().Signal(SIGTERM);
  ASSERT_TRUE(Eventually(
      [&] { return daemon.process().Errors().find("\"stopping\"") != std::string::npos; }));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_THAT(reader->Finish().error_code(),
              AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED));
  EXPECT_THAT(daemon.process().Errors(), HasSubstr("drain cut short"));
}

}  // namespace
}  // namespace ringfill
