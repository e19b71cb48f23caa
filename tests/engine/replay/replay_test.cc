// Engines that record, and replays of what they recorded.
#include "engine/replay/replay.h"

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "engine/replay/plan_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 40;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ReplayTest : public testing::Test {
 protected:
  ReplayTest()
      : log_(testing::TempDir() + "replay_" +
             testing::UnitTest::GetInstance()->current_test_info()->name()),
        model_path_(WriteTinyModel(tiny_)) {
    RemoveAll();
  }
  ~ReplayTest() override { RemoveAll(); }
  void RemoveAll() const {
    std::filesystem::remove(log_);
    std::filesystem::remove(log_ + ".1");
  }

  EngineOptions Recording(int ranks) const {
    EngineOptions options = SmallOptions(ranks);
    options.plan_log_path = log_;
    return options;
  }

  // Prompts of several lengths together, one to be scored, answers of some tokens.
  void RecordMixed(const EngineOptions& options) {
    EngineRunner runner(model_path_, options);
    std::vector<std::unique_ptr<Client>> clients;
    for (const int length : {700, 30, 300}) {
      Request request =
          Greedy(RandomPrompt(static_cast<size_t>(length), tiny_.vocab, 3), 5 + length / 100);
      request.prompt_logprobs = length == 300;
      auto client = Client::Start(runner.engine(), std::move(request));
      ASSERT_TRUE(client.ok()) << client.status();
      clients.push_back(*std::move(client));
    }
    for (auto& client : clients) EXPECT_TRUE(client->Finish().status.ok());
    EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
    steps_ = runner.engine().Status().steps;
  }

  ReplayReport ReplayLog(bool keep_going = false) const {
    auto reader = PlanLogReader::Open(log_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    const std::shared_ptr<const Model> model = LoadModelOrDie(model_path_);
    EXPECT_TRUE(CheckReplayable((*reader)->header(), *model).ok())
        << CheckReplayable((*reader)->header(), *model);
    ReplayOptions options;
    options.threads = 1;
    options.keep_going = keep_going;
    return Replay(**reader, model, options);
  }

  // Writes the log again, as `change` leaves its header and records.
  using Change = std::function<void(PlanLogHeader&, std::vector<LogRecord>&)>;
  void Rewrite(const Change& change) const {
    PlanLogHeader header;
    std::vector<LogRecord> records;
    {
      auto reader = PlanLogReader::Open(log_);
      ASSERT_TRUE(reader.ok()) << reader.status();
      header = (*reader)->header();
      for (;;) {
        auto record = (*reader)->Next();
        ASSERT_TRUE(record.ok()) << record.status();
        if (!record->has_value()) break;
        records.push_back(**std::move(record));
      }
    }
    change(header, records);
    auto writer = PlanLogWriter::Create(log_, kNoLimit, header);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const LogRecord& record : records) {
      ASSERT_TRUE((*writer)->Append(EncodeLogRecord(record)).ok());
    }
  }

  // The outcome that is number `n` of those with rows of logits.
  static OutcomeRecord& OutcomeOf(std::vector<LogRecord>& records, int n) {
    for (LogRecord& record : records) {
      auto* outcome = std::get_if<OutcomeRecord>(&record);
      if (outcome != nullptr && !outcome->rows.empty() && n-- == 0) return *outcome;
    }
    ADD_FAILURE() << "no such outcome";
    return std::get<OutcomeRecord>(records.front());
  }

  TinyModelOptions tiny_;
  const std::string log_, model_path_;
  int64_t steps_ = 0;
};

TEST_F(ReplayTest, GivesTheSameRun) {
  for (const int ranks : {1, 2, 3}) {
    RecordMixed(Recording(ranks));
    const ReplayReport report = ReplayLog();
    EXPECT_TRUE(report.agrees()) << report.first->what << report.broken;
    EXPECT_EQ(report.steps, steps_);
    EXPECT_EQ(report.agreement.rows, 8 + 12 + 5);  // a row of logits a token
    EXPECT_EQ(report.agreement.scores, 299);
    EXPECT_LE(report.agreement.largest, kReplayToleranceF32);
    EXPECT_EQ(report.end, PlanLogEndText(PlanLogEnd::kStopped));
  }
}

TEST_F(ReplayTest, GivesTheSameBitsInStrictNumerics) {
  EngineOptions options = Recording(2);
  options.strict = true;
  RecordMixed(options);
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.first->what << report.broken;
  EXPECT_EQ(report.steps, steps_);
  EXPECT_GT(report.agreement.rows, 0);
  EXPECT_EQ(report.agreement.equal_rows, report.agreement.rows);
  EXPECT_EQ(report.agreement.equal_scores, 299);
  EXPECT_EQ(report.agreement.largest, 0);
}

TEST_F(ReplayTest, FollowsARingThatLosesARankAndStepsThatFail) {
  EngineOptions options = Recording(3);
  options.fault = [](int rank, uint64_t step) {
    if (rank == 1 && step == 5) return absl::UnavailableError("lost");
    return rank == 0 && step == 8 ? absl::InternalError("injected") : absl::OkStatus();
  };
  RecordMixed(options);
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.first->what << report.broken;
  EXPECT_EQ(report.steps, steps_);
  EXPECT_EQ(report.failed_steps, 2);
  EXPECT_EQ(report.rings, 3);
}

// A new rank's pages are empty, as are all pages at the start.
TEST_F(ReplayTest, FollowsNewcomers) {
  RecordMixed(Recording(2));
  Rewrite([](PlanLogHeader&, std::vector<LogRecord>& records) {
    records.insert(records.begin(), {RingRecord{2, {1}}, RingRecord{3, {-1, 0}}});
    for (LogRecord& record : records) {
      if (auto* plan = std::get_if<PlanRecord>(&record)) plan->plan.epoch = 3;
    }
  });
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.first->what << report.broken;
  EXPECT_EQ(report.steps, steps_);
  EXPECT_EQ(report.rings, 3);
}

TEST_F(ReplayTest, FollowsARequestThatIsCancelledInAStep) {
  tiny_.layers = 6;
  const std::string model = WriteTinyModel(tiny_);
  EngineOptions options = Recording(2);
  std::shared_ptr<Outbox> outbox;
  std::atomic<bool> submitted{false};
  options.fault = [&](int rank, uint64_t step) {
    while (!submitted) std::this_thread::yield();
    if (rank == 0 && step == 2) outbox->Close();
    return absl::OkStatus();
  };
  {
    EngineRunner runner(model, options);
    auto client = runner.engine().Submit(Greedy(RandomPrompt(1500, tiny_.vocab, 1), 3), [] {});
    ASSERT_TRUE(client.ok());
    outbox = *client;
    submitted = true;
    ASSERT_TRUE(runner.engine().WaitIdle(std::chrono::minutes(2)));
    const Outcome other = runner.Run(Greedy(RandomPrompt(100, tiny_.vocab, 2), 3));
    EXPECT_TRUE(other.status.ok()) << other.status;
    EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
    steps_ = runner.engine().Status().steps;
  }
  int stopped = 0;
  Rewrite([&](PlanLogHeader&, std::vector<LogRecord>& records) {
    for (const LogRecord& record : records) {
      const auto* outcome = std::get_if<OutcomeRecord>(&record);
      stopped += outcome != nullptr && outcome->stopped != 0;
    }
  });
  EXPECT_EQ(stopped, 1);
  auto reader = PlanLogReader::Open(log_);
  ASSERT_TRUE(reader.ok());
  ReplayOptions one_thread;
  one_thread.threads = 1;
  const ReplayReport report = Replay(**reader, LoadModelOrDie(model), one_thread);
  EXPECT_TRUE(report.agrees()) << report.first->what << report.broken;
  EXPECT_EQ(report.steps, steps_);
}

TEST_F(ReplayTest, FindsTheFirstStepWithAnotherResult) {
  RecordMixed(Recording(2));
  uint64_t step = 0;
  Rewrite([&](PlanLogHeader&, std::vector<LogRecord>& records) {
    OutcomeRecord& outcome = OutcomeOf(records, 4);
    outcome.rows[0].best_logit += 0.01f;
    step = outcome.step;
    OutcomeOf(records, 6).rows[0].samples[3] += 0.01f;
  });
  ReplayReport report = ReplayLog();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->step, step);
  EXPECT_EQ(report.first->epoch, 1u);
  EXPECT_THAT(report.first->what, HasSubstr("logits of sequence "));
  EXPECT_LT(report.steps, steps_);
  EXPECT_FALSE(report.agrees());
  report = ReplayLog(/*keep_going=*/true);
  EXPECT_EQ(report.first->step, step);
  EXPECT_EQ(report.different_steps, 2);
  EXPECT_EQ(report.steps, steps_);
}

TEST_F(ReplayTest, FindsASingleBitInStrictNumerics) {
  EngineOptions options = Recording(2);
  options.strict = true;
  RecordMixed(options);
  Rewrite([](PlanLogHeader&, std::vector<LogRecord>& records) {
    OutcomeOf(records, 5).rows[0].digest ^= 1;
  });
  const ReplayReport report = ReplayLog();
  ASSERT_TRUE(report.first.has_value());
  EXPECT_THAT(report.first->what, HasSubstr("the bits differ"));
}

// What the ranks computed from is what the log says.
TEST_F(ReplayTest, FindsAPromptWithAnotherToken) {
  RecordMixed(Recording(2));
  Rewrite([](PlanLogHeader&, std::vector<LogRecord>& records) {
    TokenId& token = std::get<PlanRecord>(records.front()).plan.chunks.front().tokens[7];
    token = token == 0 ? 1 : token - 1;
  });
  EXPECT_TRUE(ReplayLog().first.has_value());
}

TEST_F(ReplayTest, ADamagedLogSaysWhereAndWhatStandsBeforeIsCompared) {
  RecordMixed(Recording(2));
  std::fstream file(log_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-40, std::ios::end);
  const char byte = static_cast<char>(file.peek() ^ 4);
  file.seekp(-40, std::ios::end);
  file.put(byte);
  file.close();
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(absl::IsDataLoss(report.broken)) << report.broken;
  EXPECT_THAT(Message(report.broken), HasSubstr("damaged at byte"));
  EXPECT_FALSE(report.agrees());
  EXPECT_FALSE(report.first.has_value());
  EXPECT_GT(report.steps, 0);
}

// Whole records, from a hostile writer.
TEST_F(ReplayTest, PlansAndRingsThatAreNotValidAreNotRun) {
  RecordMixed(Recording(2));
  const auto plan = [](std::vector<LogRecord>& records) -> StepPlan& {
    return std::get<PlanRecord>(records.front()).plan;
  };
  using Records = std::vector<LogRecord>;
  const std::pair<std::function<void(Records&)>, const char*> cases[] = {
      {[&](Records& r) { plan(r).chunks[0].pages[1][0] = 1 << 30; }, "chunks[0].pages name page"},
      {[&](Records& r) { plan(r).chunks[0].tokens[0] = -1; }, "chunks[0].tokens names token -1"},
      {[&](Records& r) { plan(r).ranks = 3; }, "ranks is 3, the ring has 2"},
      {[&](Records& r) { plan(r).epoch = 2; }, "epoch is 2 in epoch 1"},
      {[&](Records& r) { plan(r).step = 0; }, "step 0 after 0"},
      {[](Records& r) { r.erase(r.begin()); }, "follow no plan"},
      {[](Records& r) { r.erase(r.begin() + 1); }, "a plan follows a plan"},
      {[](Records& r) {
         r.insert(r.begin(), RingRecord{2, {}});
       },
       "with 0 ranks"},
      {[](Records& r) {
         r.insert(r.begin(), RingRecord{2, {5}});
       },
       "names rank 5 of 2"},
      {[](Records& r) {
         r.insert(r.begin(), RingRecord{2, {1, 1}});
       },
       "a rank twice"},
      {[](Records& r) {
         r.insert(r.begin(), RingRecord{1, {0, 1}});
       },
       "epoch 1 after 1"},
      {[](Records& r) {
         r.insert(r.begin() + 1, RingRecord{2, {0, 1}});
       },
       "while a step runs"},
  };
  for (const auto& [change, expected] : cases) {
    std::filesystem::copy_file(log_, log_ + ".1",
                               std::filesystem::copy_options::overwrite_existing);
    Rewrite([&change = change](PlanLogHeader&, Records& records) { change(records); });
    const ReplayReport report = ReplayLog();
    EXPECT_FALSE(report.broken.ok()) << expected;
    EXPECT_THAT(Message(report.broken), HasSubstr(expected));
    std::filesystem::rename(log_ + ".1", log_);
  }
}

TEST_F(ReplayTest, AStepWithoutResultsAtTheEndIsRun) {
  RecordMixed(Recording(2));
  uint64_t last = 0;
  Rewrite([&](PlanLogHeader&, std::vector<LogRecord>& records) {
    while (!std::holds_alternative<PlanRecord>(records.back())) records.pop_back();
    last = std::get<PlanRecord>(records.back()).plan.step;
  });
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees());
  EXPECT_EQ(report.steps, steps_ - 1);
  EXPECT_THAT(report.end, AllOf(HasSubstr("the daemon died"),
                                HasSubstr("step " + std::to_string(last) + ", the last")));
}

TEST_F(ReplayTest, AnotherModelOrMachineIsRefusedByName) {
  RecordMixed(Recording(2));
  auto reader = PlanLogReader::Open(log_);
  ASSERT_TRUE(reader.ok());
  const PlanLogHeader header = (*reader)->header();
  const auto model = LoadModelOrDie(model_path_);
  EXPECT_TRUE(CheckReplayable(header, *model).ok());
  tiny_.seed += 1;
  const absl::Status other = CheckReplayable(header, *LoadModelOrDie(WriteTinyModel(tiny_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(Message(other), AllOf(HasSubstr("model: the log has "), HasSubstr("here is ")));
  const std::pair<std::function<void(PlanLogHeader&)>, const char*> cases[] = {
      {[](PlanLogHeader& h) { ++h.geometry.layers; }, "KV layers: the log has "},
      {[](PlanLogHeader& h) { ++h.geometry.kv_heads; }, "KV heads: the log has "},
      {[](PlanLogHeader& h) { h.geometry.block_bytes *= 2; }, "bytes of a KV block"},
      {[](PlanLogHeader& h) { ++h.vocab; }, "vocabulary"},
      {[](PlanLogHeader& h) { h.pages_per_rank = int64_t{1} << 31; }, "memory"},
      {[](PlanLogHeader& h) { h.geometry.page_tokens = 17; }, "a multiple of 16"},
  };
  for (const auto& [change, expected] : cases) {
    PlanLogHeader changed = header;
    change(changed);
    EXPECT_THAT(Message(CheckReplayable(changed, *model)), HasSubstr(expected));
  }
}

std::optional<PlanLogEnd> EndOf(const std::string& path) {
  auto reader = PlanLogReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  for (;;) {
    const auto record = (*reader)->Next();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok() || !record->has_value()) return std::nullopt;
    if (const auto* end = std::get_if<EndRecord>(&**record)) return end->why;
  }
}

TEST_F(ReplayTest, AFullLogReplaysUpToItsEnd) {
  EngineOptions options = Recording(2);
  options.plan_log_max_bytes = 6000;
  RecordMixed(options);
  EXPECT_EQ(EndOf(log_), PlanLogEnd::kFull);
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.broken;
  EXPECT_GT(report.steps, 0);
  EXPECT_LT(report.steps, steps_);
}

PlanRecorderOptions SmallQueue(const std::string& path) {
  PlanRecorderOptions options;
  options.path = path;
  options.max_waiting_bytes = 100;
  return options;
}

PlanLogHeader SmallHeader() {
  PlanLogHeader header;
  header.geometry = {1, 1, 16, 64};
  header.vocab = 10;
  header.max_positions = header.pages_per_rank = 1;
  return header;
}

TEST_F(ReplayTest, ADiskThatIsBehindEndsTheLog) {
  {
    auto recorder = PlanRecorder::Start(SmallQueue(log_), SmallHeader());
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    RankStepResult large;
    large.logits.resize(1000);
    (*recorder)->AddResults(StepRows{}, {large});
    (*recorder)->AddRing(2, {0});
  }
  EXPECT_EQ(EndOf(log_), PlanLogEnd::kBehind);
}

// The engine serves on when the log's disk fails: here, when no file may grow beyond some bytes.
TEST_F(ReplayTest, AFailingDiskDoesNotStopTheEngine) {
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {5000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  RecordMixed(Recording(2));
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_GT(steps_, 10);
  EXPECT_EQ(EndOf(log_), std::nullopt);
  EXPECT_LE(std::filesystem::file_size(log_), 5000u);
}

TEST_F(ReplayTest, AnEngineWhoseLogCannotBeMadeDoesNotStart) {
  EngineOptions options = Recording(1);
  options.plan_log_path = "/nonexistent/run.plan";
  Metrics metrics;
  const std::shared_ptr<const Model> model = LoadModelOrDie(model_path_);
  const auto engine =
      Engine::Create(options, model, LoadTokenizerOrDie(*model), metrics, Clock::Real());
  EXPECT_TRUE(absl::IsInvalidArgument(engine.status()));
  EXPECT_THAT(Message(engine.status()),
              AllOf(HasSubstr("debug.plan_log: "), HasSubstr("/nonexistent/run.plan")));
}

}  // namespace
}  // namespace ringfill
