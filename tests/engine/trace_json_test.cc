#include "engine/trace_json.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/file_size_limit.h"

namespace ringfill {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;

const Instant kStart = Instant(std::chrono::hours(5));

TraceSpan Span(OpKind kind, TraceLane lane, nanoseconds begin, nanoseconds end) {
  TraceSpan span;
  span.label.kind = kind;
  span.lane = lane;
  span.begin = kStart + begin;
  span.end = kStart + end;
  return span;
}

// Two ranks that compute and exchange, `layers` times.
RankSpans Busy(int layers) {
  RankSpans ranks(2);
  for (int r = 0; r < 2; ++r) {
    for (int layer = 0; layer < layers; ++layer) {
      const nanoseconds at = microseconds(100 * layer + 3 * r);
      TraceSpan attend = Span(OpKind::kAttend, TraceLane::kCompute, at, at + nanoseconds(50001));
      attend.label.layer = layer;
      attend.label.round = 1;
      attend.label.strategy = RingStrategy::kPassQ;
      TraceSpan exchange = Span(OpKind::kExchange, TraceLane::kComm, at, at + microseconds(90));
      exchange.label.layer = layer;
      exchange.label.bytes = 4096;
      ranks[static_cast<size_t>(r)].push_back(exchange);
      ranks[static_cast<size_t>(r)].push_back(attend);
    }
  }
  return ranks;
}

json Parsed(const RankSpans& ranks) {
  TraceJson trace(FirstBegin(ranks).value_or(kStart));
  std::string text;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const TraceSpan& span : ranks[r]) trace.Append(static_cast<int>(r), span, text);
  }
  trace.End(text);
  return json::parse(text);
}

std::vector<json> OfPhase(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

TEST(TraceJsonTest, GivesEachSpanItsPlaceTimeAndArguments) {
  const std::vector<json> spans = OfPhase(Parsed(Busy(2)), "X");
  ASSERT_EQ(spans.size(), 8u);
  const json exchange = {
      {"name", "exchange"}, {"cat", "communication"},
      {"ph", "X"},          {"pid", 1},
      {"tid", 2},           {"ts", 0.0},
      {"dur", 90.0},        {"args", {{"layer", 0}, {"bytes", 4096}, {"strategy", "pass-kv"}}}};
  EXPECT_EQ(spans[0], exchange);
  const json attend = {
      {"name", "attend"}, {"cat", "compute"},
      {"ph", "X"},        {"pid", 2},
      {"tid", 4},         {"ts", 103.0},
      {"dur", 50.001},    {"args", {{"layer", 1}, {"round", 1}, {"strategy", "pass-q"}}}};
  EXPECT_EQ(spans[7], attend);
}

TEST(TraceJsonTest, NamesEveryRankAndLaneOnce) {
  std::map<std::pair<int, std::string>, std::vector<std::string>> names;
  for (const json& event : OfPhase(Parsed(Busy(3)), "M")) {
    if (event["args"].contains("name")) {
      names[{event["pid"].get<int>(), event["name"].get<std::string>()}].push_back(
          event["args"]["name"].get<std::string>());
    }
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_THAT((names[{1, "process_name"}]), testing::ElementsAre("rank 0"));
  EXPECT_THAT((names[{2, "process_name"}]), testing::ElementsAre("rank 1"));
  EXPECT_THAT((names[{2, "thread_name"}]),
              testing::ElementsAre("compute", "communication", "memory"));
}

TEST(TraceJsonTest, LanesAreThreadsOfTheirOwn) {
  std::map<int, double> busy_until;
  int events = 0;
  for (const json& event : OfPhase(Parsed(Busy(50)), "X")) {
    double& until = busy_until[event["tid"].get<int>()];
    EXPECT_GE(event["ts"].get<double>(), until - 1e-9) << event;
    until = event["ts"].get<double>() + event["dur"].get<double>();
    ++events;
  }
  EXPECT_EQ(events, 200);
  EXPECT_EQ(busy_until.size(), 4u);
}

TEST(TraceJsonTest, LeavesOutWhatALabelDoesNotSay) {
  const RankSpans ranks = {
      {Span(OpKind::kEmbed, TraceLane::kCompute, microseconds(1), microseconds(2))}};
  EXPECT_EQ(OfPhase(Parsed(ranks), "X")[0]["args"], json::object());
}

TEST(TraceJsonTest, ASpanThatEndsBeforeItBeginsHasNoLength) {
  const RankSpans ranks = {
      {Span(OpKind::kEmbed, TraceLane::kCompute, microseconds(9), microseconds(2))}};
  EXPECT_EQ(OfPhase(Parsed(ranks), "X")[0]["dur"], 0.0);
}

TEST(TraceJsonTest, NothingIsAnEmptyArray) {
  EXPECT_EQ(Parsed({}), json::array());
  EXPECT_EQ(FirstBegin({{}, {}}), std::nullopt);
}

RequestSpan Phase(const std::string& id, RequestPhase phase, int from_us, int to_us) {
  RequestSpan span;
  span.request_id = id;
  span.phase = phase;
  span.tokens = 7;
  span.begin = kStart + microseconds(from_us);
  span.end = kStart + microseconds(to_us);
  return span;
}

TEST(TraceJsonTest, RequestsHaveRowsOfTheirOwn) {
  TraceJson trace(kStart);
  std::string text;
  RequestSpan queue = Phase("a \"b\" \\ \n", RequestPhase::kQueue, -5, 10);
  queue.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  trace.Append(queue, text);
  trace.Append(Phase("other", RequestPhase::kPrefill, 10, 30), text);
  trace.Append(Phase("caf\u00e9 \xff", RequestPhase::kQueue, 30, 40), text);  // the last no UTF-8
  trace.Append(0, Busy(1)[0][0], text);
  trace.End(text);
  const json events = json::parse(text);
  const std::vector<json> begins = OfPhase(events, "b"), ends = OfPhase(events, "e");
  ASSERT_EQ(begins.size(), 3u);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(begins[2]["id"], "caf\u00e9 \ufffd");
  EXPECT_EQ(begins[0]["name"], "queue");
  EXPECT_EQ(begins[0]["id"], queue.request_id);
  EXPECT_EQ(begins[0]["ts"], -5.0);
  EXPECT_EQ(ends[0]["ts"], 10.0);
  EXPECT_EQ(ends[0]["id"], queue.request_id);
  EXPECT_EQ(
      begins[0]["args"],
      (json{{"request_id", queue.request_id}, {"tokens", 7}, {"traceparent", queue.traceparent}}));
  EXPECT_EQ(begins[1]["args"], (json{{"request_id", "other"}, {"tokens", 7}}));
  EXPECT_EQ(OfPhase(events, "X").size(), 1u);
}

class TraceFileTest : public ::testing::Test {
 protected:
  ~TraceFileTest() override { std::filesystem::remove(path_); }
  json Contents() const {
    std::ifstream in(path_, std::ios::binary);
    return json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  const std::string path_ =
      ::testing::TempDir() + "trace_file_" + std::to_string(getpid()) + ".json";
};

TEST_F(TraceFileTest, IsWholeAfterEachAppend) {
  const auto file = TraceFile::Create(path_, 1000).value();
  EXPECT_EQ(Contents(), json::array());
  ASSERT_TRUE(file->Append({{}, {}}).ok());
  EXPECT_EQ(Contents(), json::array());
  for (int batch = 1; batch <= 3; ++batch) {
    ASSERT_TRUE(file->Append(Busy(2)).ok());
    EXPECT_EQ(OfPhase(Contents(), "X").size(), 8u * batch);
    EXPECT_EQ(OfPhase(Contents(), "M").size(), 16u) << "names come once";
    ASSERT_TRUE(file->Append({}).ok());
  }
  EXPECT_EQ(file->spans(), 24);
}

TEST_F(TraceFileTest, StopsAtItsBound) {
  const auto file = TraceFile::Create(path_, 10).value();
  ASSERT_TRUE(file->Append(Busy(2)).ok());
  EXPECT_FALSE(file->full());
  ASSERT_TRUE(file->Append(Busy(2)).ok());
  EXPECT_TRUE(file->full());
  EXPECT_EQ(file->spans(), 10);
  EXPECT_EQ(file->dropped(), 6);
  EXPECT_EQ(OfPhase(Contents(), "X").size(), 10u);
}

TEST_F(TraceFileTest, LargeBatchesAreWhole) {
  const auto file = TraceFile::Create(path_, 1000000).value();
  ASSERT_TRUE(file->Append(Busy(10000)).ok());
  EXPECT_EQ(OfPhase(Contents(), "X").size(), 40000u);
}

// What a full disk does not take is left out whole.
TEST_F(TraceFileTest, StaysWholeWhereTheDiskEnds) {
  for (const int batches : {0, 1}) {
    const auto file = TraceFile::Create(path_, 1000).value();
    for (int i = 0; i < batches; ++i) ASSERT_TRUE(file->Append(Busy(2)).ok());
    const json before = Contents();
    {
      const FileSizeLimit limit(std::filesystem::file_size(path_) + 100);
      const absl::Status status = file->Append(Busy(2));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": File too large"));
    }
    EXPECT_EQ(Contents(), before);
  }
}

TEST_F(TraceFileTest, ReplacesWhatWasThere) {
  std::ofstream(path_) << "[\n" << std::string(100000, 'x');
  const auto file = TraceFile::Create(path_, 10).value();
  EXPECT_EQ(Contents(), json::array());
}

TEST(TraceFileErrorTest, NamesAPathThatCannotBeWritten) {
  const absl::Status status = TraceFile::Create("/nonexistent/t.json", 10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/t.json: No such file"));
}

// The model, say.
TEST(TraceFileErrorTest, WritesOverNothingButTraces) {
  const std::string path = testing::TempDir() + "model_" + std::to_string(getpid()) + ".gguf";
  for (const std::string& text : {std::string("GGUF and weights"), std::string("["),
                                  std::string("[1, 2]"), std::string("\n[\n")}) {
    std::ofstream(path) << text;
    const absl::Status status = TraceFile::Create(path, 10).status();
    EXPECT_EQ(std::string(status.message()), path + " is there and is no trace");
    std::ifstream in(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
  }
  for (const std::string& text : {std::string("[\n{}\n]\n"), std::string()}) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0644));
    EXPECT_TRUE(TraceFile::Create(path, 10).ok());
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
  }
  std::filesystem::remove(path);
}

TEST(TraceFileErrorTest, AFullDiskIsAnError) {
  const absl::Status status = TraceFile::Create("/dev/full", 10).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("No space left"));
}

}  // namespace
}  // namespace ringfill
