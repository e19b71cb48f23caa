// A daemon that records, and `ringfilld replay` as scripts see it.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/replay/plan_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/app/exit_codes.h"
#include "tests/server/ringfilld.h"
#include "tests/server/test_daemon.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Exit RunReplay(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "replay");
  return RunRingfilld(arguments);
}

class ServerReplayTest : public ::testing::Test {
 protected:
  ServerReplayTest() : log_(::testing::TempDir() + "replay_" + std::to_string(getpid()) + ".plan") {
    RemoveAll();
  }
  ~ServerReplayTest() override { RemoveAll(); }
  void RemoveAll() const {
    std::filesystem::remove(log_);
    std::filesystem::remove(log_ + ".1");
  }

  // Two requests of a daemon from its start to its end.
  void Record(std::vector<std::string> settings = {}) const {
    settings.push_back("debug.plan_log=" + log_);
    TestDaemon daemon(settings);
    for (int seed = 0; seed < 2; ++seed) {
      const Generated done = Generate(daemon.stub(), GenerateOf(TokenPrompt(900, seed), 6));
      EXPECT_TRUE(done.status.ok()) << done.status.error_message();
      EXPECT_EQ(done.tokens.size(), 6u);
    }
  }

  std::vector<std::string> Arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"--plan-log", log_, "--model", TinyModelPath()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const std::string log_;
};

TEST_F(ServerReplayTest, AgreesWithTheDaemon) {
  Record();
  const Exit text = RunReplay(Arguments());
  EXPECT_EQ(text.code, kExitOk) << text.out << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("2 ranks, f32"), HasSubstr("fast numerics"),
                    HasSubstr("compared 12 rows of logits"), HasSubstr("all results agree"),
                    HasSubstr("the log ends: the daemon was stopped")));
  const Exit json = RunReplay(Arguments({"--json"}));
  EXPECT_EQ(json.code, kExitOk) << json.err;
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report["agrees"], true);
  EXPECT_EQ(report["rows"], 12);
  EXPECT_EQ(report["ranks"], 2);
  EXPECT_LE(report["largest_difference"], 1e-3);
}

TEST_F(ServerReplayTest, StrictResultsHaveEqualBits) {
  Record({"compute.numerics=strict"});
  const Exit json = RunReplay(Arguments({"--json", "--set", "compute.numerics=strict"}));
  EXPECT_EQ(json.code, kExitOk) << json.err;
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report["equal_rows"], report["rows"]);
  EXPECT_EQ(report["largest_difference"], 0);
  EXPECT_EQ(report["tolerance"], nullptr);
}

TEST_F(ServerReplayTest, AFlippedByteIsFound) {
  Record();
  std::fstream file(log_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff middle = file.tellg() / 2;
  file.seekg(middle);
  const char byte = static_cast<char>(file.peek() ^ 1);
  file.seekp(middle);
  file.put(byte);
  file.close();
  const Exit damaged = RunReplay(Arguments({"--json"}));
  EXPECT_EQ(damaged.code, kExitRefused);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr(log_), HasSubstr("damaged at byte")));
  EXPECT_EQ(nlohmann::json::parse(damaged.out)["agrees"], false);
}

// A result that the daemon never gave.
TEST_F(ServerReplayTest, WhatDiffersIsPrintedWithItsStep) {
  Record();
  PlanLogHeader header;
  std::vector<LogRecord> records;
  uint64_t step = 0;
  {
    auto reader = PlanLogReader::Open(log_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    header = (*reader)->header();
    for (auto record = (*reader)->Next(); record.ok() && record->has_value();
         record = (*reader)->Next()) {
      records.push_back(**std::move(record));
      auto* outcome = std::get_if<OutcomeRecord>(&records.back());
      if (outcome == nullptr || outcome->rows.empty() || step != 0) continue;
      outcome->rows[0].best_logit += 0.01f;
      step = outcome->step;
    }
  }
  auto writer = PlanLogWriter::Create(log_, int64_t{1} << 30, header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const LogRecord& record : records) {
    ASSERT_TRUE((*writer)->Append(EncodeLogRecord(record)).ok());
  }
  const Exit text = RunReplay(Arguments());
  EXPECT_EQ(text.code, kExitDiffers);
  EXPECT_THAT(text.out, HasSubstr("step " + std::to_string(step) + " of epoch 1 differs: logits"));
  const auto report = nlohmann::json::parse(RunReplay(Arguments({"--json"})).out);
  EXPECT_EQ(report["first_difference"]["step"], step);
  EXPECT_EQ(RunReplay(Arguments({"--tolerance", "0.1"})).code, kExitOk);
}

TEST_F(ServerReplayTest, WhatDoesNotFitIsRefusedByName) {
  Record();
  TinyModelOptions options;
  options.seed = 99;
  const std::string other = WriteTinyModel(options);
  const Exit model = RunReplay({"--plan-log", log_, "--model", other});
  EXPECT_EQ(model.code, kExitRefused);
  EXPECT_THAT(model.err, AllOf(HasSubstr("model: the log has "), HasSubstr("here is ")));
  const std::pair<const char*, const char*> settings[] = {
      {"compute.dtype=bf16",
       "compute.dtype: the configuration says bf16, the log was made with f32"},
      {"kv.dtype=bf16", "kv.dtype: the configuration says bf16"},
      {"compute.numerics=strict", "compute.numerics: the configuration says strict"},
  };
  for (const auto& [setting, expected] : settings) {
    const Exit exit = RunReplay(Arguments({"--set", setting}));
    EXPECT_EQ(exit.code, kExitRefused) << setting;
    EXPECT_THAT(exit.err, HasSubstr(expected));
  }
  const Exit no_log = RunReplay({"--plan-log", TinyModelPath(), "--model", TinyModelPath()});
  EXPECT_EQ(no_log.code, kExitRefused);
  EXPECT_THAT(no_log.err, HasSubstr("is no plan log"));
  const Exit no_model = RunReplay({"--plan-log", log_, "--model", log_});
  EXPECT_EQ(no_model.code, kExitModel);
}

TEST_F(ServerReplayTest, HelpTeachesAndBadUsageSaysWhatToDo) {
  const Exit help = RunReplay({"--help"});
  EXPECT_EQ(help.code, kExitOk);
  EXPECT_THAT(help.out, AllOf(HasSubstr("debug.plan_log=run.plan"), HasSubstr("--tolerance"),
                              HasSubstr("Exit codes:")));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"--model", TinyModelPath()}}) {
    const Exit nothing = RunReplay(arguments);
    EXPECT_EQ(nothing.code, kExitConfig);
    EXPECT_THAT(nothing.err, AllOf(HasSubstr("give --plan-log FILE"),
                                   HasSubstr("Try: ringfilld replay --help")));
  }
  for (const char* bad : {"-1", "nan", "inf", "x", ""}) {
    const Exit exit = RunReplay(Arguments({"--tolerance", bad}));
    EXPECT_EQ(exit.code, kExitConfig) << bad;
    EXPECT_THAT(exit.err, HasSubstr("--tolerance: must be a number from 0 up, such as 0.001"));
  }
}

TEST_F(ServerReplayTest, ADaemonThatIsKilledInAStepLeavesALogToReplay) {
  Ringfilld daemon({"compute.dtype=f32", "prefill.chunk_tokens=16", "debug.plan_log=" + log_});
  grpc::ClientContext context;
  const auto reader =
      daemon.stub().Generate(&context, GenerateOf(TokenPrompt(kTinyContext - 10), 1));
  EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(log_) > 10000; }));
  daemon.process().Signal(SIGKILL);
  EXPECT_EQ(daemon.process().Wait(), 128 + SIGKILL);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  EXPECT_FALSE(reader->Finish().ok());
  const Exit replay = RunReplay(Arguments());
  EXPECT_EQ(replay.code, kExitOk) << replay.out << replay.err;
  EXPECT_THAT(replay.out, AllOf(HasSubstr("all results agree"), HasSubstr("the daemon died")));
}

// The shell's blocks have 512 bytes.
TEST_F(ServerReplayTest, FilesThatMayNotGrowEndAndTheDaemonServesOn) {
  const std::string trace = log_ + ".json";
  {
    Ringfilld daemon({"compute.dtype=f32", "debug.plan_log=" + log_, "trace.path=" + trace},
                     "ulimit -f 40");
    for (int seed = 0; seed < 10; ++seed) {
      const Generated done = Generate(daemon.stub(), GenerateOf(TokenPrompt(900, seed), 6));
      EXPECT_TRUE(done.status.ok()) << done.status.error_message();
    }
    daemon.process().Signal(SIGTERM);
    EXPECT_EQ(daemon.process().Wait(), kExitOk);
    EXPECT_THAT(daemon.process().Errors(),
                AllOf(HasSubstr("the plan log ends"), HasSubstr("tracing to the file ends"),
                      HasSubstr(log_ + ": File too large")));
  }
  const Exit replay = RunReplay(Arguments());
  EXPECT_EQ(replay.code, kExitOk) << replay.out << replay.err;
  EXPECT_THAT(replay.out, AllOf(HasSubstr("all results agree"), HasSubstr("could not be written")));
  EXPECT_TRUE(nlohmann::json::parse(std::ifstream(trace)).is_array());
  std::filesystem::remove(trace);
}

TEST_F(ServerReplayTest, ADaemonWhoseLogCannotBeMadeDoesNotStart) {
  const auto daemon = Daemon::Start(TestConfig({"debug.plan_log=/nonexistent/run.plan"}));
  ASSERT_FALSE(daemon.ok());
  EXPECT_THAT(std::string(daemon.status().message()),
              AllOf(HasSubstr("debug.plan_log: "), HasSubstr("/nonexistent/run.plan")));
}

}  // namespace
}  // namespace ringfill
