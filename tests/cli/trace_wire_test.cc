// `ringfill trace` against a scripted daemon.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/child.h"
#include "tests/cli/fake_daemon.h"

namespace ringfill::cli {
namespace {

using ::testing::HasSubstr;

class TraceWire : public ::testing::Test {
 protected:
  TraceWire() { std::filesystem::create_directory(folder_); }
  ~TraceWire() override { std::filesystem::remove_all(folder_); }

  ChildResult Run(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--address", daemon_.address(), "trace"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Child(RINGFILL_BINARY, arguments, "").Wait();
  }

  // Two parts of a file and their summary.
  void Script(uint64_t spans, uint64_t dropped) {
    daemon_.trace.resize(4);
    daemon_.trace[0].mutable_progress()->set_elapsed_s(0.5);
    daemon_.trace[1].set_json("[1,");
    daemon_.trace[2].set_json("2]");
    v1::TraceSummary& done = *daemon_.trace[3].mutable_done();
    done.set_seconds(2);
    done.set_ranks(3);
    done.set_spans(spans);
    done.set_dropped(dropped);
  }

  std::string Contents() const {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  bool Empty() const { return std::filesystem::is_empty(folder_); }

  FakeDaemon daemon_;
  const std::string folder_ = ::testing::TempDir() + "trace_wire_" + std::to_string(getpid());
  const std::string path_ = folder_ + "/t.json";
};

TEST_F(TraceWire, WritesTheFile) {
  Script(1200, 0);
  const ChildResult result = Run({"--seconds", "2", "--out", path_});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "wrote " + path_ +
                            ": 1,200 operations of 3 ranks in 2.00 s; open it at "
                            "https://ui.perfetto.dev\n");
  EXPECT_EQ(result.err, "") << "no progress without a terminal";
  EXPECT_EQ(Contents(), "[1,2]");
  EXPECT_EQ(daemon_.last_trace().seconds(), 2);
}

TEST_F(TraceWire, JsonIsOneObject) {
  Script(7, 3);
  const ChildResult result = Run({"--out", path_, "--json"});
  const nlohmann::json expected = {{"file", path_}, {"seconds", 2.0}, {"ranks", 3},
                                   {"spans", 7},    {"dropped", 3},   {"bytes", 5}};
  EXPECT_EQ(nlohmann::json::parse(result.out), expected);
  EXPECT_THAT(result.err, HasSubstr("left out: 3 operations"));
}

TEST_F(TraceWire, MayGoToStandardOutput) {
  Script(7, 0);
  EXPECT_EQ(Run({"--out", "-"}).out, "[1,2]");
  const ChildResult both = Run({"--out", "-", "--json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("standard output"));
}

TEST_F(TraceWire, AnIdleDaemonIsExplained) {
  Script(0, 0);
  const ChildResult result = Run({"--out", path_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("no step ended in that time"));
  EXPECT_TRUE(Empty());
}

TEST_F(TraceWire, AFailureLeavesNoFile) {
  Script(7, 0);
  daemon_.trace_status = {grpc::RESOURCE_EXHAUSTED, "another trace is being recorded"};
  const ChildResult refused = Run({"--out", path_});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("RESOURCE_EXHAUSTED: another trace is being recorded"));
  daemon_.trace_status = grpc::Status::OK;
  daemon_.trace.pop_back();
  const ChildResult cut = Run({"--out", path_});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("INTERNAL"));
  EXPECT_TRUE(Empty());
}

TEST_F(TraceWire, AFileThatCannotBeWrittenIsAUsageError) {
  Script(7, 0);
  const ChildResult result = Run({"--out", folder_ + "/no/such"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot write " + folder_ + "/no/such"));
  EXPECT_EQ(Run({"--out", "/dev/full"}).exit_code, 1);
}

TEST_F(TraceWire, InterruptLeavesNoFile) {
  daemon_.hang = true;
  Child child(RINGFILL_BINARY, {"--address", daemon_.address(), "trace", "--out", path_}, "");
  daemon_.hanging.WaitForNotification();
  child.Signal(SIGINT);
  const ChildResult result = child.Wait();
  daemon_.cancelled.WaitForNotification();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "ringfill: interrupted, the request is cancelled\n");
  EXPECT_TRUE(Empty());
}

}  // namespace
}  // namespace ringfill::cli
