#include "server/trace/tracer.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "engine/request/retry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class ManualClock final : public Clock {
 public:
  Instant Now() const override { return now; }
  Instant now = Instant(seconds(1000));
};

struct Ears final : Tracer::Listener {
  void OnProgress(double elapsed_s, int64_t spans) override {
    progress_s = elapsed_s;
    progress_spans = spans;
    ++progresses;
  }
  void OnRecorded(Recording r) override { recording = std::move(r); }
  void OnOverdue() override { ++overdue; }

  double progress_s = 0;
  int64_t progress_spans = 0;
  int progresses = 0;
  int overdue = 0;
  std::optional<Recording> recording;
};

class TracerTest : public ::testing::Test {
 protected:
  ~TracerTest() override { std::filesystem::remove(path_); }

  void Make(int64_t file_spans = 0) {
    std::unique_ptr<TraceFile> file;
    if (file_spans > 0) file = TraceFile::Create(path_, file_spans).value();
    tracer_ =
        std::make_unique<Tracer>(TraceSource{.set_tracing = [this](bool on) { on_ = on; },
                                             .busy = [this] { return busy_; },
                                             .take = [this] { return std::exchange(pending_, {}); },
                                             .dropped = [this] { return dropped_; }},
                                 clock_, std::move(file), seconds(60));
  }

  // `count` operations of rank `rank`, when tracing is on.
  void Work(size_t rank, size_t count) {
    if (!on_) return;
    pending_.resize(std::max(pending_.size(), rank + 1));
    for (size_t i = 0; i < count; ++i) {
      TraceSpan span;
      span.begin = clock_.now;
      span.end = clock_.now + milliseconds(1);
      pending_[rank].push_back(span);
    }
  }

  void After(Duration time) {
    clock_.now += time;
    tracer_->Poll();
  }

  size_t SpansInFile() const {
    std::ifstream in(path_, std::ios::binary);
    size_t spans = 0;
    for (const auto& event :
         nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(in), {}))) {
      spans += event["ph"] == "X";
    }
    return spans;
  }

  const std::string path_ = ::testing::TempDir() + "tracer_" + std::to_string(getpid()) + ".json";
  ManualClock clock_;
  bool on_ = false;
  bool busy_ = false;
  RankSpans pending_;
  std::vector<RequestSpan> requests_;
  int64_t dropped_ = 0;
  std::unique_ptr<Tracer> tracer_;
  const std::shared_ptr<Ears> ears_ = std::make_shared<Ears>();
};

TEST_F(TracerTest, RecordsForAsLongAsAsked) {
  Make();
  EXPECT_FALSE(on_);
  ASSERT_TRUE(tracer_->Record(seconds(2), ears_).ok());
  EXPECT_TRUE(on_);
  Work(0, 3);
  Work(1, 4);
  dropped_ = 5;
  After(seconds(1));
  EXPECT_EQ(ears_->progresses, 1);
  EXPECT_EQ(ears_->progress_s, 1);
  EXPECT_EQ(ears_->progress_spans, 7);
  Work(1, 1);
  After(milliseconds(1250));
  ASSERT_TRUE(ears_->recording.has_value());
  EXPECT_FALSE(on_);
  EXPECT_EQ(ears_->recording->seconds, 2.25);
  EXPECT_EQ(ears_->recording->spans, 8);
  EXPECT_EQ(ears_->recording->dropped, 5);
  ASSERT_EQ(ears_->recording->ranks.size(), 2u);
  EXPECT_EQ(ears_->recording->ranks[1].size(), 5u);
}

TEST_F(TracerTest, WhatCameBeforeIsNotPartOfIt) {
  Make();
  on_ = true;
  Work(0, 3);
  dropped_ = 7;
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  After(seconds(1));
  EXPECT_EQ(ears_->recording->spans, 0);
  EXPECT_EQ(ears_->recording->dropped, 0);
}

RequestSpan PhaseOf(const std::string& id, Instant begin, Instant end) {
  RequestSpan span;
  span.request_id = id;
  span.begin = begin;
  span.end = end;
  return span;
}

TEST_F(TracerTest, PhasesOfRequestsAreShownFromTheRecordingsStart) {
  tracer_ = std::make_unique<Tracer>(
      TraceSource{.set_tracing = [](bool) {},
                  .busy = [] { return false; },
                  .take = [] { return RankSpans(); },
                  .take_requests = [this] { return std::exchange(requests_, {}); },
                  .open_requests =
                      [](Instant now) {
                        return std::vector<RequestSpan>{PhaseOf("open", now - seconds(3600), now)};
                      },
                  .dropped = [] { return 0; }},
      clock_, nullptr, seconds(60));
  const Instant start = clock_.now;
  ASSERT_TRUE(tracer_->Record(seconds(2), ears_).ok());
  requests_ = {PhaseOf("ended", start - seconds(60), start + seconds(1))};
  After(seconds(1));
  After(seconds(1));
  ASSERT_TRUE(ears_->recording.has_value());
  const std::vector<RequestSpan>& requests = ears_->recording->requests;
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].request_id, "ended");
  EXPECT_EQ(requests[0].begin, start);
  EXPECT_EQ(requests[0].end, start + seconds(1));
  EXPECT_EQ(requests[1].request_id, "open");
  EXPECT_EQ(requests[1].begin, start);
  EXPECT_EQ(requests[1].end, start + seconds(2));
}

TEST_F(TracerTest, WaitsForAStepThatTakesLonger) {
  Make();
  busy_ = true;
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  After(seconds(20));
  EXPECT_FALSE(ears_->recording.has_value());
  EXPECT_EQ(ears_->progresses, 1);
  Work(0, 3);
  After(milliseconds(100));
  EXPECT_EQ(ears_->recording->spans, 3);
  EXPECT_FALSE(on_);
}

TEST_F(TracerTest, DoesNotWaitForever) {
  Make();
  busy_ = true;
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  After(seconds(1) + Tracer::kPatience);
  EXPECT_EQ(ears_->recording->spans, 0);
}

TEST_F(TracerTest, OneAtATime) {
  Make();
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  auto other = std::make_shared<Ears>();
  const absl::Status refused = tracer_->Record(seconds(1), other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(refused).has_value());
  After(seconds(1));
  EXPECT_FALSE(tracer_->Record(seconds(1), other).ok()) << "it is still being read";
}

TEST_F(TracerTest, AListenerThatIsGoneEndsItsRecording) {
  Make();
  auto listener = std::make_shared<Ears>();
  ASSERT_TRUE(tracer_->Record(seconds(60), listener).ok());
  listener.reset();
  After(milliseconds(100));
  EXPECT_FALSE(on_);
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  Work(0, 1);
  After(seconds(1));
  EXPECT_EQ(ears_->recording->spans, 1);
}

TEST_F(TracerTest, WhoDoesNotTakeTheRecordingIsToldOnce) {
  Make();
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  After(seconds(1));
  After(seconds(59));
  EXPECT_EQ(ears_->overdue, 0);
  After(seconds(2));
  After(seconds(2));
  EXPECT_EQ(ears_->overdue, 1);
}

TEST_F(TracerTest, KeepsABoundedNumber) {
  Make();
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  Work(0, Tracer::kMaxRecordedSpans - 1);
  Work(1, 10);
  After(seconds(1));
  EXPECT_EQ(ears_->recording->spans, Tracer::kMaxRecordedSpans);
  EXPECT_EQ(ears_->recording->dropped, 9);
  EXPECT_EQ(ears_->recording->ranks[1].size(), 1u);
}

TEST_F(TracerTest, WritesItsFileAllTheTime) {
  Make(1000);
  EXPECT_TRUE(on_);
  Work(0, 3);
  After(milliseconds(100));
  EXPECT_EQ(SpansInFile(), 3u);
  ASSERT_TRUE(tracer_->Record(seconds(1), ears_).ok());
  Work(1, 2);
  After(seconds(1));
  EXPECT_EQ(ears_->recording->spans, 2);
  EXPECT_TRUE(on_) << "the file goes on";
  EXPECT_EQ(SpansInFile(), 5u);
  Work(0, 1);
  tracer_->Close();
  EXPECT_EQ(SpansInFile(), 6u);
}

TEST_F(TracerTest, AFullFileEndsTracing) {
  Make(4);
  Work(0, 3);
  After(milliseconds(100));
  EXPECT_TRUE(on_);
  Work(0, 3);
  After(milliseconds(100));
  EXPECT_FALSE(on_);
  EXPECT_EQ(SpansInFile(), 4u);
  After(milliseconds(100));
}

}  // namespace
}  // namespace ringfill
