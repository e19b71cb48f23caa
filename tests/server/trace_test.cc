// Traces of a daemon in this process, by the RPC and by trace.path.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

using grpc::StatusCode;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Traced {
  grpc::Status status;
  std::string text;
  v1::TraceSummary summary;
};

Traced ReadTrace(v1::Ringfill::Stub& stub, double seconds) {
  v1::TraceRequest request;
  request.set_seconds(seconds);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kHangLimit);
  const auto reader = stub.Trace(&context, request);
  Traced out;
  for (v1::TraceEvent event; reader->Read(&event);) {
    out.text += event.json();
    if (event.has_done()) out.summary = event.done();
  }
  out.status = reader->Finish();
  return out;
}

// Generates until it is destroyed.
class Load {
 public:
  explicit Load(TestDaemon& daemon)
      : thread_([this, &daemon] {
          while (!stop_) {
            if (!Generate(daemon.stub(), GenerateOf(TokenPrompt(600), 5)).status.ok()) return;
            ++done_;
          }
        }) {}
  ~Load() {
    stop_ = true;
    thread_.join();
  }
  int done() const { return done_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> done_{0};
  std::thread thread_;
};

// Each rank did both kinds of things, none of them twice at a time in a lane.
void ExpectTwoBusyRanks(const json& trace) {
  std::map<int, std::vector<std::pair<double, double>>> lanes;  // by thread
  std::set<std::tuple<int, std::string>> seen;                  // rank's process and lane
  std::set<std::string> names;
  for (const json& event : trace) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"].get<double>();
    EXPECT_GE(begin, 0);
    lanes[event["tid"].get<int>()].emplace_back(begin, begin + event["dur"].get<double>());
    seen.emplace(event["pid"].get<int>(), event["cat"].get<std::string>());
    names.insert(event["name"].get<std::string>());
  }
  for (const int process : {1, 2}) {
    EXPECT_TRUE(seen.contains({process, "compute"})) << process;
    EXPECT_TRUE(seen.contains({process, "communication"})) << process;
  }
  EXPECT_TRUE(names.contains("attend") && names.contains("layers"))
      << ::testing::PrintToString(names);
  for (auto& [thread, spans] : lanes) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i) {
      // Times are rounded to nanoseconds.
      ASSERT_GE(spans[i].first, spans[i - 1].second - 0.002) << "thread " << thread;
    }
  }
}

TEST(TraceRpcTest, ShowsWhatEveryRankDid) {
  TestDaemon daemon;
  Traced traced;
  {
    const Load load(daemon);
    traced = ReadTrace(daemon.stub(), 1);
  }
  ASSERT_TRUE(traced.status.ok()) << traced.status.error_message();
  const json trace = json::parse(traced.text);
  ExpectTwoBusyRanks(trace);
  const auto spans = std::count_if(trace.begin(), trace.end(),
                                   [](const json& event) { return event["ph"] == "X"; });
  EXPECT_EQ(traced.summary.spans(), static_cast<uint64_t>(spans));
  EXPECT_EQ(traced.summary.ranks(), 2u);
  EXPECT_GE(traced.summary.seconds(), 1);
  EXPECT_EQ(daemon.Metric("ringfill_requests_total", "outcome=\"ok\",rpc=\"Trace\""), 1);
}

TEST(TraceRpcTest, ShowsTheRequestsWithTheirCallersTrace) {
  const std::string traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
  TestDaemon daemon;
  std::thread client([&] {
    // Until the trace has begun and ended.
    for (int i = 0; i < 200 && daemon.Metric("ringfill_requests_total", "rpc=\"Trace\"") == 0;
         ++i) {
      v1::GenerateRequest request = GenerateOf(TokenPrompt(300), 3);
      request.set_request_id("mine");
      grpc::ClientContext context;
      context.AddMetadata("traceparent", traceparent);
      const auto reader = daemon.stub().Generate(&context, request);
      for (v1::GenerateEvent event; reader->Read(&event);) {
      }
      EXPECT_TRUE(reader->Finish().ok());
    }
  });
  const Traced traced = ReadTrace(daemon.stub(), 1);
  client.join();
  ASSERT_TRUE(traced.status.ok());
  std::set<std::string> phases;
  for (const json& event : json::parse(traced.text)) {
    if (event["ph"] != "b") continue;
    phases.insert(event["name"].get<std::string>());
    EXPECT_EQ(event["args"]["request_id"], "mine");
    EXPECT_EQ(event["args"]["traceparent"], traceparent);
  }
  EXPECT_EQ(phases, (std::set<std::string>{"queue", "prefill", "decode"}));
}

// One whose client does not read stays in its phase.
TEST(TraceRpcTest, ShowsRequestsThatGoOn) {
  TestDaemon daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(20), 10000);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, request);
  for (v1::GenerateEvent event; reader->Read(&event) && !event.has_token();) {
  }
  Traced traced;
  {
    const Load load(daemon);
    traced = ReadTrace(daemon.stub(), 0.2);
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  int shown = 0;
  for (const json& event : json::parse(traced.text)) {
    if (event["ph"] != "b" || event["args"]["request_id"] != "mine") continue;
    EXPECT_EQ(event["name"], "decode");
    EXPECT_EQ(event["args"]["unfinished"], true);
    EXPECT_GE(event["ts"].get<double>(), 0);
    ++shown;
  }
  EXPECT_EQ(shown, 1);
}

TEST(TraceRpcTest, AnIdleDaemonGivesAnEmptyTrace) {
  TestDaemon daemon;
  const Traced traced = ReadTrace(daemon.stub(), 0.05);
  ASSERT_TRUE(traced.status.ok());
  EXPECT_EQ(json::parse(traced.text), json::array());
  EXPECT_EQ(traced.summary.spans(), 0u);
}

TEST(TraceRpcTest, RefusesTimesItCannotTake) {
  TestDaemon daemon;
  for (const double seconds : {0.0, -1.0, 60.5, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
    const grpc::Status status = ReadTrace(daemon.stub(), seconds).status;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << seconds;
    EXPECT_THAT(status.error_message(), HasSubstr("at most 60"));
  }
}

TEST(TraceRpcTest, OneAtATimeAndACancelledOneMakesRoom) {
  TestDaemon daemon;
  v1::TraceRequest request;
  request.set_seconds(60);
  grpc::ClientContext context;
  const auto reader = daemon.stub().Trace(&context, request);
  v1::TraceEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_progress());
  const grpc::Status refused = ReadTrace(daemon.stub(), 1).status;
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(RetryDelay(refused).has_value());
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return ReadTrace(daemon.stub(), 0.01).status.ok(); }));
  EXPECT_EQ(daemon.Metric("ringfill_requests_total", "outcome=\"cancelled\",rpc=\"Trace\""), 1);
}

TEST(TraceRpcTest, ADeadlineEndsIt) {
  TestDaemon daemon;
  v1::TraceRequest request;
  request.set_seconds(60);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  const auto reader = daemon.stub().Trace(&context, request);
  for (v1::TraceEvent event; reader->Read(&event);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
}

TEST(TraceRpcTest, DoesNotHoldUpTheEnd) {
  TestDaemon daemon;
  v1::TraceRequest request;
  request.set_seconds(60);
  grpc::ClientContext context;
  const auto reader = daemon.stub().Trace(&context, request);
  v1::TraceEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const auto start = std::chrono::steady_clock::now();
  daemon.Shutdown(std::chrono::seconds(0));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  while (reader->Read(&event)) {
  }
  EXPECT_THAT(reader->Finish().error_code(), AnyOf(StatusCode::UNAVAILABLE, StatusCode::CANCELLED));
}

// With the smallest windows on the client's side, most of a trace stays with the daemon.
TEST(TraceRpcTest, AClientThatDoesNotReadMakesRoom) {
  TestDaemon daemon({"server.slow_client_timeout_s=0.3"});
  v1::TraceRequest request;
  request.set_seconds(1);
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::TraceEvent>> reader;
  {
    const Load load(daemon);
    reader = daemon.stub().Trace(&context, request);
    EXPECT_TRUE(Eventually([&] { return load.done() > 2; }));
    EXPECT_TRUE(Eventually([&] {
      return daemon.Metric("ringfill_requests_total", "outcome=\"cancelled\",rpc=\"Trace\"") == 1;
    }));
  }
  for (v1::TraceEvent event; reader->Read(&event);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(ReadTrace(daemon.stub(), 0.01).status.ok());
}

class TracePathTest : public ::testing::Test {
 protected:
  ~TracePathTest() override { std::filesystem::remove(path_); }
  json Contents() const {
    std::ifstream in(path_, std::ios::binary);
    return json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  const std::string path_ =
      ::testing::TempDir() + "trace_path_" + std::to_string(getpid()) + ".json";
};

TEST_F(TracePathTest, HoldsWhatRanUntilTheEnd) {
  TestDaemon daemon({"trace.path=" + path_});
  EXPECT_EQ(Contents(), json::array());
  ASSERT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(900), 5)).status.ok());
  daemon.Shutdown(std::chrono::seconds(1));
  ExpectTwoBusyRanks(Contents());
}

TEST_F(TracePathTest, StopsAtItsBoundWhileTheDaemonGoesOn) {
  TestDaemon daemon({"trace.path=" + path_, "trace.max_spans=10"});
  ASSERT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(900), 50)).status.ok());
  ASSERT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(900), 5)).status.ok());
  daemon.Shutdown(std::chrono::seconds(1));
  const json trace = Contents();
  EXPECT_EQ(std::count_if(trace.begin(), trace.end(),
                          [](const json& event) { return event["ph"] == "X"; }),
            10);
}

TEST_F(TracePathTest, APathThatCannotBeWrittenIsNamed) {
  const auto daemon = Daemon::Start(TestConfig({"trace.path=/nonexistent/t.json"}));
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(daemon.status().message()),
              HasSubstr("trace.path: cannot write /nonexistent/t.json"));
}

}  // namespace
}  // namespace ringfill
