#include "engine/schedule/plan_log.h"

#include <filesystem>
#include <fstream>
#include <random>

#include "engine/schedule/plan_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/schedule/random_plan.h"

namespace ringfill {
namespace {

class PlanLogTest : public testing::Test {
 protected:
  PlanLogTest()
      : path_(testing::TempDir() + "plan_log_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove(path_);
  }
  ~PlanLogTest() override { std::filesystem::remove(path_); }

  void Append(int plans) {
    auto writer = PlanLogWriter::Open(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int i = 0; i < plans; ++i) {
      const StepPlan plan = RandomPlan(random_);
      written_.push_back(EncodePlan(plan));
      ASSERT_TRUE((*writer)->Append(plan).ok());
    }
  }

  std::vector<std::string> Read(bool* torn = nullptr) {
    std::vector<std::string> plans;
    auto reader = PlanLogReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return plans;
    for (;;) {
      const auto plan = (*reader)->Next();
      EXPECT_TRUE(plan.ok()) << plan.status();
      if (!plan.ok() || !plan->has_value()) break;
      plans.push_back(EncodePlan(**plan));
    }
    if (torn != nullptr) *torn = (*reader)->torn();
    return plans;
  }

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

TEST_F(PlanLogTest, PlansComeBackInOrder) {
  Append(20);
  bool torn = true;
  EXPECT_EQ(Read(&torn), written_);
  EXPECT_FALSE(torn);
}

TEST_F(PlanLogTest, ALogIsContinued) {
  Append(3);
  Append(0);
  Append(4);
  EXPECT_EQ(Read(), written_);
}

// Wherever the tail is torn, whole records stay, and the next writer goes on behind them.
TEST_F(PlanLogTest, ATornTailIsCutOff) {
  Append(2);
  const std::string two = Bytes();
  Append(1);
  const std::string three = Bytes();
  const std::vector<std::string> all = written_;
  for (size_t cut = two.size(); cut <= three.size(); cut += cut + 20 < three.size() ? 11 : 1) {
    SetBytes(std::string_view(three).substr(0, cut));
    bool torn = false;
    const size_t whole = cut == three.size() ? 3 : 2;
    ASSERT_EQ(Read(&torn).size(), whole) << cut;
    ASSERT_EQ(torn, cut != two.size() && cut != three.size()) << cut;
    written_.assign(all.begin(), all.begin() + static_cast<int64_t>(whole));
    Append(1);
    ASSERT_EQ(Read(&torn), written_) << cut;
    ASSERT_FALSE(torn);
  }
}

TEST_F(PlanLogTest, ATailOfOtherBytesIsTorn) {
  Append(2);
  const std::string whole = Bytes();
  SetBytes(whole + std::string(100, '\0'));
  bool torn = false;
  // A record of no bytes has the checksum of no bytes, which is not zero.
  EXPECT_EQ(Read(&torn).size(), 2u);
  EXPECT_TRUE(torn);
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  SetBytes(flipped);
  EXPECT_EQ(Read(&torn).size(), 1u);
  EXPECT_TRUE(torn);
}

TEST_F(PlanLogTest, AFileTornInItsHeaderStartsAnew) {
  Append(0);
  SetBytes(Bytes().substr(0, 5));
  EXPECT_EQ(PlanLogReader::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  Append(1);
  EXPECT_EQ(Read(), written_);
}

TEST_F(PlanLogTest, OtherFilesAreRefusedAndLeftAlone) {
  SetBytes("some other file, with text");
  EXPECT_EQ(PlanLogReader::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(PlanLogWriter::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Bytes(), "some other file, with text");
}

TEST_F(PlanLogTest, OtherVersionsAreRefusedByName) {
  Append(1);
  std::string bytes = Bytes();
  bytes[4] = 2;
  SetBytes(bytes);
  const absl::Status status = PlanLogReader::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("version"));
  EXPECT_FALSE(PlanLogWriter::Open(path_).ok());
}

TEST_F(PlanLogTest, AWholeRecordThatIsNoPlanIsDataLoss) {
  Append(1);
  std::string bytes = Bytes();
  // One byte "x" and its FNV-1a checksum.
  const uint32_t header[] = {1, (2166136261u ^ 'x') * 16777619u};
  bytes.append(reinterpret_cast<const char*>(header), sizeof(header));
  bytes += 'x';
  SetBytes(bytes);
  auto reader = PlanLogReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->Next().ok());
  EXPECT_EQ((*reader)->Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PlanLogTest, MissingFiles) {
  EXPECT_EQ(PlanLogReader::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(PlanLogWriter::Open(path_ + "/no/folder").ok());
}

}  // namespace
}  // namespace ringfill
