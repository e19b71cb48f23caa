#include "base/output_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using ::testing::HasSubstr;

class OutputFileTest : public ::testing::Test {
 protected:
  OutputFileTest() { std::filesystem::create_directory(folder_); }
  ~OutputFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Contents() const {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  int64_t Files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  const std::string folder_ = ::testing::TempDir() + "output_file_" + std::to_string(getpid());
  const std::string path_ = folder_ + "/f";
};

TEST_F(OutputFileTest, AppearsWhole) {
  const auto file = OutputFile::Create(path_).value();
  ASSERT_TRUE(file->Write("one ").ok());
  ASSERT_TRUE(file->Write("two").ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Contents(), "one two");
  EXPECT_EQ(file->bytes(), 7);
  EXPECT_EQ(Files(), 1);
}

TEST_F(OutputFileTest, LeavesNothingWithoutCommit) {
  std::ofstream(path_) << "old";
  {
    const auto file = OutputFile::Create(path_).value();
    ASSERT_TRUE(file->Write("new").ok());
  }
  EXPECT_EQ(Contents(), "old");
  EXPECT_EQ(Files(), 1);
}

TEST_F(OutputFileTest, ReplacesAFile) {
  std::ofstream(path_) << "a longer old text";
  const auto file = OutputFile::Create(path_).value();
  ASSERT_TRUE(file->Write("new").ok() && file->Commit().ok());
  EXPECT_EQ(Contents(), "new");
}

TEST_F(OutputFileTest, WritesDevicesInPlace) {
  const auto file = OutputFile::Create("/dev/null").value();
  ASSERT_TRUE(file->Write("x").ok() && file->Commit().ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const auto full = OutputFile::Create("/dev/full").value();
  EXPECT_THAT(std::string(full->Write("x").message()), HasSubstr("/dev/full: No space"));
}

TEST_F(OutputFileTest, NamesWhatCannotBeWritten) {
  EXPECT_THAT(std::string(OutputFile::Create(path_ + "/x").status().message()),
              HasSubstr(path_ + "/x: No such file"));
  EXPECT_THAT(std::string(OutputFile::Create(folder_).status().message()),
              HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace ringfill
