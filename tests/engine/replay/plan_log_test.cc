#include "engine/replay/plan_log.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/schedule/random_plan.h"
#include "tests/testing/file_size_limit.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

constexpr int64_t kNoLimit = int64_t{1} << 40;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

PlanLogHeader SomeHeader() {
  PlanLogHeader header;
  header.model_name = "tiny";
  header.model_digest[3] = std::byte{7};
  header.geometry = {2, 3, 16, 4096};
  header.vocab = 1000;
  header.max_positions = 4000;
  header.pages_per_rank = 500;
  header.gather_bytes = 1 << 20;
  header.ranks = 3;
  header.dtype = DType::kBF16;
  header.isa = CpuIsa::kAvx2;
  header.strict = true;
  return header;
}

class PlanLogTest : public testing::Test {
 protected:
  PlanLogTest()
      : path_(testing::TempDir() + "plan_log_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    RemoveAll();
  }
  ~PlanLogTest() override { RemoveAll(); }
  void RemoveAll() const {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".1");
  }

  std::unique_ptr<PlanLogWriter> Create(int64_t max_bytes = kNoLimit) {
    auto writer = PlanLogWriter::Create(path_, max_bytes, SomeHeader());
    EXPECT_TRUE(writer.ok()) << writer.status();
    written_.clear();
    return writer.ok() ? *std::move(writer) : nullptr;
  }

  // One of each kind that may stand in the middle of a log.
  LogRecord RandomRecord() {
    switch (random_() % 3) {
      case 0:
        return PlanRecord{RandomPlan(random_)};
      case 1: {
        OutcomeRecord outcome;
        outcome.step = random_();
        outcome.failed = random_() % 2 == 0;
        outcome.stopped = random_();
        outcome.rows.resize(random_() % 4);
        for (LogitsRecord& row : outcome.rows) {
          row.digest = random_();
          row.best = static_cast<TokenId>(random_() % 1000);
          row.best_logit = -1.5f;
          row.samples.fill(std::numeric_limits<float>::quiet_NaN());
        }
        outcome.scores.resize(random_() % 4, {1, 20, -0.5f});
        return outcome;
      }
      default:
        return RingRecord{random_(), {2, -1, 0}};
    }
  }

  void Append(PlanLogWriter& writer, int records) {
    for (int i = 0; i < records; ++i) {
      const std::string bytes = EncodeLogRecord(RandomRecord());
      written_.push_back(bytes);
      ASSERT_TRUE(writer.Append(bytes).ok());
    }
  }

  // What is read up to the end or the first error.
  struct Contents {
    absl::Status status;
    std::vector<std::string> records;
    bool torn = false;
  };
  Contents Read(const std::string& path) const {
    Contents contents;
    auto reader = PlanLogReader::Open(path);
    contents.status = reader.status();
    if (!reader.ok()) return contents;
    for (;;) {
      const auto record = (*reader)->Next();
      contents.status = record.status();
      if (!record.ok() || !record->has_value()) break;
      contents.records.push_back(EncodeLogRecord(**record));
    }
    contents.torn = (*reader)->torn();
    return contents;
  }
  Contents Read() const { return Read(path_); }

  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetBytes(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string path_;
  std::mt19937 random_{1};
  std::vector<std::string> written_;
};

TEST_F(PlanLogTest, RecordsComeBackInOrder) {
  auto writer = Create();
  Append(*writer, 60);
  ASSERT_TRUE(writer->End(PlanLogEnd::kStopped).ok());
  written_.push_back(EncodeLogRecord(EndRecord{PlanLogEnd::kStopped}));
  const Contents contents = Read();
  EXPECT_TRUE(contents.status.ok()) << contents.status;
  EXPECT_EQ(contents.records, written_);
  EXPECT_FALSE(contents.torn);
}

TEST_F(PlanLogTest, TheHeaderComesBack) {
  Create();
  auto reader = PlanLogReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(EncodeLogHeader((*reader)->header()), EncodeLogHeader(SomeHeader()));
  EXPECT_EQ((*reader)->header().model_name, "tiny");
  EXPECT_EQ((*reader)->header().isa, CpuIsa::kAvx2);
}

TEST_F(PlanLogTest, OnlyTheOwnerMayReadIt) {
  Create();
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(PlanLogTest, TheLogBeforeIsKept) {
  auto writer = Create();
  Append(*writer, 3);
  const std::vector<std::string> first = written_;
  writer = Create();
  Append(*writer, 2);
  EXPECT_EQ(Read(path_ + ".1").records, first);
  EXPECT_EQ(Read().records, written_);
  Create();
  EXPECT_EQ(Read(path_ + ".1").records.size(), 2u);
}

TEST_F(PlanLogTest, ALogWithoutStepsTakesNoPlace) {
  auto writer = Create();
  Append(*writer, 3);
  const std::vector<std::string> first = written_;
  for (const bool ended : {false, true, false}) {
    writer = Create();
    if (ended) (void)writer->End(PlanLogEnd::kFailed);
  }
  Create();
  EXPECT_EQ(Read(path_ + ".1").records, first);
  EXPECT_TRUE(Read().records.empty());
}

TEST_F(PlanLogTest, AFullLogEndsAndSaysSo) {
  constexpr int64_t kLimit = 4000;
  auto writer = Create(kLimit);
  while (!writer->ended()) Append(*writer, 1);
  EXPECT_FALSE(writer->Append(EncodeLogRecord(RingRecord{9, {0}})).ok());
  EXPECT_TRUE(writer->End(PlanLogEnd::kStopped).ok());  // it has one
  const Contents contents = Read();
  EXPECT_TRUE(contents.status.ok()) << contents.status;
  written_.back() = EncodeLogRecord(EndRecord{PlanLogEnd::kFull});
  EXPECT_EQ(contents.records, written_);
  EXPECT_LE(Bytes().size(), static_cast<size_t>(kLimit));
}

// Wherever the disk ends: whole records, then an end that says why, which may take the place of the
// last of them.
TEST_F(PlanLogTest, ALogThatCannotBeWrittenAnyMoreSaysSo) {
  auto writer = Create();
  Append(*writer, 2);
  const auto two = static_cast<int64_t>(Bytes().size());
  const std::string third = EncodeLogRecord(RingRecord{9, {0}});
  const std::string end = EncodeLogRecord(EndRecord{PlanLogEnd::kFailed});
  const auto end_bytes = static_cast<int64_t>(end.size()) + 12;  // with its record header
  for (int64_t room = 0; room < static_cast<int64_t>(third.size()) + 12; ++room) {
    random_.seed(1);
    writer = Create();
    Append(*writer, 2);
    {
      const FileSizeLimit limit(static_cast<rlim_t>(two + room));
      EXPECT_TRUE(absl::IsUnavailable(writer->Append(third)));
    }
    EXPECT_TRUE(writer->ended());
    EXPECT_FALSE(writer->Append(third).ok());
    EXPECT_TRUE(writer->End(PlanLogEnd::kStopped).ok());  // it has one
    const Contents contents = Read();
    EXPECT_TRUE(contents.status.ok()) << room << ": " << contents.status;
    EXPECT_FALSE(contents.torn) << room;
    written_.resize(room < end_bytes ? 1 : 2);
    written_.push_back(end);
    EXPECT_EQ(contents.records, written_) << room;
  }
}

// Devices are no files of ours.
TEST_F(PlanLogTest, NoLogIsMadeInPlaceOfADevice) {
  auto writer = PlanLogWriter::Create("/dev/full", kNoLimit, SomeHeader());
  EXPECT_TRUE(absl::IsDataLoss(writer.status())) << writer.status();
}

// Wherever the tail is torn, the whole records before it are read.
TEST_F(PlanLogTest, ATornTailIsToldFromDamage) {
  auto writer = Create();
  Append(*writer, 2);
  const std::string two = Bytes();
  Append(*writer, 1);
  const std::string three = Bytes();
  for (size_t cut = two.size(); cut <= three.size(); ++cut) {
    SetBytes(std::string_view(three).substr(0, cut));
    const Contents contents = Read();
    ASSERT_TRUE(contents.status.ok()) << cut << ": " << contents.status;
    ASSERT_EQ(contents.records.size(), cut == three.size() ? 3u : 2u) << cut;
    ASSERT_EQ(contents.torn, cut != two.size() && cut != three.size()) << cut;
  }
}

TEST_F(PlanLogTest, EveryFlippedBitIsFound) {
  auto writer = Create();
  Append(*writer, 3);
  const std::string whole = Bytes();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    SetBytes(flipped);
    const Contents contents = Read();
    ASSERT_FALSE(contents.status.ok()) << "bit " << bit;
    ASSERT_TRUE(absl::IsDataLoss(contents.status) || absl::IsInvalidArgument(contents.status))
        << contents.status;
    ASSERT_THAT(Message(contents.status), HasSubstr(path_));
  }
}

TEST_F(PlanLogTest, DamageNamesThePlace) {
  auto writer = Create();
  Append(*writer, 1);
  const size_t first_end = Bytes().size();
  Append(*writer, 1);
  std::string bytes = Bytes();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  SetBytes(bytes);
  const Contents contents = Read();
  EXPECT_EQ(contents.records.size(), 1u);
  EXPECT_THAT(Message(contents.status), HasSubstr("damaged at byte " + std::to_string(first_end)));
}

TEST_F(PlanLogTest, OtherFilesAreRefusedAndLeftAlone) {
  const std::string text = "some other file, with text";
  SetBytes(text);
  EXPECT_TRUE(absl::IsDataLoss(PlanLogReader::Open(path_).status()));
  EXPECT_TRUE(absl::IsDataLoss(PlanLogWriter::Create(path_, kNoLimit, SomeHeader()).status()));
  EXPECT_EQ(Bytes(), text);
  // Nor is one that is in the way of the log before.
  std::filesystem::rename(path_, path_ + ".1");
  EXPECT_TRUE(absl::IsDataLoss(PlanLogWriter::Create(path_, kNoLimit, SomeHeader()).status()));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".1"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(PlanLogTest, AFileTornInItsHeaderStartsAnew) {
  Create();
  for (const size_t kept : {30, 15, 3, 0}) {
    SetBytes(Bytes().substr(0, kept));
    EXPECT_TRUE(absl::IsDataLoss(Read().status));
    EXPECT_THAT(Message(Read().status), HasSubstr("it ends in its header"));
  }
  auto writer = Create();
  Append(*writer, 1);
  EXPECT_EQ(Read().records, written_);
}

TEST_F(PlanLogTest, OtherVersionsAreRefusedByName) {
  Create();
  std::string bytes = Bytes();
  bytes[4] = 77;
  SetBytes(bytes);
  const absl::Status status = PlanLogReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("version of "));
  EXPECT_THAT(Message(status), HasSubstr("is 77"));
}

TEST_F(PlanLogTest, RecordsThatAreNoneNameTheField) {
  EXPECT_THAT(Message(DecodeLogRecord("").status()), HasSubstr("record type is cut off"));
  EXPECT_THAT(Message(DecodeLogRecord("\x09").status()), HasSubstr("record type is 9"));
  std::string bytes = EncodeLogRecord(RingRecord{1, {0}});
  EXPECT_THAT(Message(DecodeLogRecord(bytes + "x").status()), HasSubstr("1 bytes behind it"));
  bytes = EncodeLogRecord(OutcomeRecord());
  bytes[18] = 100;  // the rows' count
  EXPECT_THAT(Message(DecodeLogRecord(bytes).status()), HasSubstr("outcome.rows has 100 elements"));
  EXPECT_THAT(Message(DecodeLogRecord(EncodePlanRecord("no plan")).status()), HasSubstr("magic"));
  PlanLogHeader header = SomeHeader();
  header.ranks = 65;
  EXPECT_THAT(Message(DecodeLogHeader(EncodeLogHeader(header)).status()),
              HasSubstr("ranks is 65, outside 1 to 64"));
}

TEST_F(PlanLogTest, FilesThatCannotBeMade) {
  EXPECT_TRUE(absl::IsNotFound(PlanLogReader::Open(path_).status()));
  const absl::Status status =
      PlanLogWriter::Create(path_ + "/no/folder", kNoLimit, SomeHeader()).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Message(status), HasSubstr(path_ + "/no/folder"));
}

}  // namespace
}  // namespace ringfill
