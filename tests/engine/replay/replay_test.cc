// Engines that record, and replays of what they recorded.
#include "engine/replay/replay.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "engine/replay/plan_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 40;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// All that is in a log.
std::vector<LogRecord> RecordsOf(const std::string& path) {
  std::vector<LogRecord> records;
  auto reader = PlanLogReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  while (reader.ok()) {
    auto record = (*reader)->Next();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok() || !record->has_value()) break;
    records.push_back(**std::move(record));
  }
  return records;
}

std::optional<PlanLogEnd> EndOf(const std::string& path) {
  const std::vector<LogRecord> records = RecordsOf(path);
  const auto* end = records.empty() ? nullptr : std::get_if<EndRecord>(&records.back());
  return end != nullptr ? std::optional(end->why) : std::nullopt;
}

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
    auto reader = PlanLogReader::Open(log_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    PlanLogHeader header = (*reader)->header();
    std::vector<LogRecord> records = RecordsOf(log_);
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

// Ranks whose ring cannot form anew at the first try, and run nothing until it has.
class LateRing : public Workers {
 public:
  explicit LateRing(std::unique_ptr<Workers> real) : real_(std::move(real)) {}
  int ranks() const override { return real_->ranks(); }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override {
    if (formed_) return real_->Run(plan, control);
    std::vector<RankStepResult> results(static_cast<size_t>(real_->ranks()));
    for (RankStepResult& result : results) result.status = absl::UnavailableError("no ring");
    return results;
  }
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch,
                                          const std::function<bool()>& while_waiting) override {
    formed_ = tries_++ > 0;
    if (!formed_) return absl::UnavailableError("no rank is there");
    return real_->Reform(epoch, while_waiting);
  }
  bool WantsReform() override { return formed_ && real_->WantsReform(); }
  absl::StatusOr<Figures> Measure(const ModelShape& shape) override {
    return real_->Measure(shape);
  }
  void Trace(bool on) override { real_->Trace(on); }

 private:
  const std::unique_ptr<Workers> real_;
  bool formed_ = true;
  int tries_ = 0;
};

TEST_F(ReplayTest, StepsWithoutARingAreNotInTheLog) {
  EngineOptions options = Recording(2);
  options.fault = [](int, uint64_t step) {
    return step == 2 ? absl::InternalError("injected") : absl::OkStatus();
  };
  const WorkersFactory threads =
      EngineRunner::ThreadsWith(LoadModelOrDie(model_path_), options, [](ThreadWorkersOptions&) {});
  options.workers = [&](const WorkersSpec& spec,
                        const EngineInfo& info) -> absl::StatusOr<std::unique_ptr<Workers>> {
    RF_ASSIGN_OR_RETURN(std::unique_ptr<Workers> real, threads(spec, info));
    return std::make_unique<LateRing>(std::move(real));
  };
  {
    EngineRunner runner(model_path_, options);
    bool served = false;
    for (int i = 0; i < 4; ++i) {
      auto client = Client::Start(runner.engine(), Greedy(RandomPrompt(200, tiny_.vocab, 3), 5));
      ASSERT_TRUE(client.ok()) << client.status();
      served = (*client)->Finish().status.ok();
    }
    EXPECT_TRUE(served);
  }
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.broken;
  EXPECT_EQ(report.rings, 2);
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
         r.insert(r.begin(), RingRecord{2, {0, 1, -1}});
       },
       "with 3 ranks of 2"},
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

// A short run with a repair in it.
class ForgedReplayTest : public ReplayTest {
 protected:
  void Record() {
    EngineOptions options = Recording(2);
    options.fault = [](int rank, uint64_t step) {
      return rank == 1 && step == 3 ? absl::UnavailableError("lost") : absl::OkStatus();
    };
    EngineRunner runner(model_path_, options);
    Request request = Greedy(RandomPrompt(150, tiny_.vocab, 3), 4);
    request.prompt_logprobs = true;
    EXPECT_TRUE(runner.Run(std::move(request)).status.ok());
  }

  // Replays a log of these bytes; the message of what is broken in it.
  std::string ReplayBytes(const PlanLogHeader& header, std::span<const std::string> records) {
    {
      auto writer = PlanLogWriter::Create(log_, kNoLimit, header);
      EXPECT_TRUE(writer.ok()) << writer.status();
      for (const std::string& bytes : records) EXPECT_TRUE((*writer)->Append(bytes).ok());
    }
    return Message(ReplayLog(/*keep_going=*/true).broken);
  }
};

// Bytes that no daemon writes, with checksums that are right: whatever they say, the replay ends
// with an answer. --gtest_shuffle --gtest_random_seed=N for others.
TEST_F(ForgedReplayTest, ForgedLogsAreRefusedOrRun) {
  Record();
  std::vector<std::string> records;
  for (const LogRecord& record : RecordsOf(log_)) records.push_back(EncodeLogRecord(record));
  const std::string header = EncodeLogHeader(PlanLogReader::Open(log_).value()->header());
  const std::shared_ptr<const Model> model = LoadModelOrDie(model_path_);
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()));
  const auto forge = [&random](std::string bytes) {
    const uint64_t values[] = {0, 1, 2, 3, 255, 0x7fffffff, ~uint64_t{0}, random()};
    const uint64_t value = values[random() % std::size(values)];
    const size_t at = random() % bytes.size();
    const size_t width = size_t{1} << (random() % 4);
    std::memcpy(bytes.data() + at, &value, std::min(width, bytes.size() - at));
    return bytes;
  };
  int ran = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    std::string forged_header = header;
    std::vector<std::string> forged = records;
    if (i % 4 == 0) {
      forged_header = forge(header);
    } else {
      std::string& victim = forged[random() % forged.size()];
      victim = forge(victim);
    }
    const absl::StatusOr<PlanLogHeader> decoded = DecodeLogHeader(forged_header);
    if (!decoded.ok() || !CheckReplayable(*decoded, *model).ok()) continue;
    (ReplayBytes(*decoded, forged).empty() ? ran : refused) += 1;
  }
  EXPECT_GT(ran, 20);
  EXPECT_GT(refused, 20);
}

// Each of these is valid; together they are what no scheduler plans.
TEST_F(ForgedReplayTest, EveryWayOfComputingIsRun) {
  Record();
  const std::vector<LogRecord> records = RecordsOf(log_);
  const PlanLogHeader header = PlanLogReader::Open(log_).value()->header();
  const std::function<void(PlanLogHeader&)> headers[] = {
      [](PlanLogHeader&) {},
      [](PlanLogHeader& h) { h.strict = true; },
      [](PlanLogHeader& h) { h.gather_bytes = 0; },
      [](PlanLogHeader& h) { h.isa = CpuIsa::kBaseline; },
      [](PlanLogHeader& h) { h.dtype = DType::kBF16; },
  };
  for (const auto& change : headers) {
    PlanLogHeader changed = header;
    change(changed);
    for (int mode = 0; mode < kTokenModes; ++mode) {
      for (int strategy = 0; strategy < kRingStrategies; ++strategy) {
        SCOPED_TRACE(testing::Message() << "mode " << mode << ", strategy " << strategy);
        std::vector<std::string> forged;
        for (LogRecord record : records) {
          if (auto* plan = std::get_if<PlanRecord>(&record)) {
            for (PrefillChunk& chunk : plan->plan.chunks) {
              chunk.mode = static_cast<TokenMode>(mode);
              chunk.strategy = static_cast<RingStrategy>(strategy);
              if (chunk.mode != TokenMode::kReplicated) continue;
              chunk.score = false;
              chunk.targets.clear();
            }
          }
          forged.push_back(EncodeLogRecord(record));
        }
        EXPECT_EQ(ReplayBytes(changed, forged), "");
      }
    }
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
  {
    const FileSizeLimit limit(5000);
    RecordMixed(Recording(2));
  }
  EXPECT_GT(steps_, 10);
  EXPECT_EQ(EndOf(log_), PlanLogEnd::kFailed);
  EXPECT_LE(std::filesystem::file_size(log_), 5000u);
  const ReplayReport report = ReplayLog();
  EXPECT_TRUE(report.agrees()) << report.broken;
  EXPECT_THAT(report.end, HasSubstr("could not be written"));
}

// Records without results wait for the disk like others.
TEST_F(ReplayTest, EveryRecordThatWaitsCounts) {
  using Add = std::function<void(PlanRecorder&)>;
  for (const Add& add : {Add([](PlanRecorder& r) { r.AddFailed(1); }),
                         Add([](PlanRecorder& r) { r.AddRing(2, {0}); })}) {
    std::promise<void> goes_on;
    PlanRecorderOptions options = SmallQueue(log_);
    options.max_waiting_bytes = 10000;
    options.before_write = [disk = goes_on.get_future().share()] { disk.wait(); };
    auto recorder = PlanRecorder::Start(options, SmallHeader());
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    for (int i = 0; i < 1000; ++i) add(**recorder);
    goes_on.set_value();
    recorder->reset();
    EXPECT_EQ(EndOf(log_), PlanLogEnd::kBehind);
  }
}

TEST_F(ReplayTest, ADiskThatHangsDoesNotHoldUpTheEnd) {
  std::promise<void> goes_on, held;
  auto thread_lives = std::make_shared<int>();
  const std::weak_ptr<int> ends = thread_lives;
  PlanRecorderOptions options;
  options.path = log_;
  options.close_limit = std::chrono::milliseconds(1);
  options.before_write = [disk = goes_on.get_future().share(), &held, thread_lives] {
    held.set_value();
    disk.wait();
  };
  auto recorder = PlanRecorder::Start(options, SmallHeader());
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  options.before_write = nullptr;
  thread_lives.reset();
  for (int i = 0; i < 2; ++i) (*recorder)->AddFailed(1);
  held.get_future().wait();
  recorder->reset();
  EXPECT_FALSE(ends.expired());
  EXPECT_TRUE(RecordsOf(log_).empty());
  // The record that the disk takes at last is written, nothing after it.
  goes_on.set_value();
  while (!ends.expired()) std::this_thread::yield();
  EXPECT_EQ(RecordsOf(log_).size(), 1u);
  EXPECT_EQ(EndOf(log_), std::nullopt);
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
