#include "engine/comm/tcp/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace ringfill {
namespace {

std::string WriteFile(const std::string& content, mode_t mode) {
  const std::string path = testing::TempDir() + "/secret_test_file";
  std::filesystem::remove(path);
  std::ofstream(path) << content;
  chmod(path.c_str(), mode);
  return path;
}

std::string Text(const Secret& secret) {
  return std::string(reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size());
}

TEST(SecretTest, FileIsReadWithoutItsLastNewLine) {
  const auto secret = Secret::FromFile(WriteFile("0123456789abcdef \r\n\n", 0600));
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(Text(*secret), "0123456789abcdef");
  EXPECT_TRUE(Secret::FromFile(WriteFile("0123456789abcdef", 0440)).ok());
}

TEST(SecretTest, FilesOpenToOthersAreRefused) {
  for (const mode_t mode : {0604, 0602, 0601, 0644, 0660, 0666}) {
    const auto secret = Secret::FromFile(WriteFile("0123456789abcdef", mode));
    EXPECT_TRUE(absl::IsPermissionDenied(secret.status())) << std::oct << mode;
  }
}

TEST(SecretTest, SizesAreBounded) {
  EXPECT_TRUE(absl::IsInvalidArgument(Secret::FromFile(WriteFile("", 0600)).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(Secret::FromFile(WriteFile("0123456789abcde\n", 0600)).status()));
  EXPECT_TRUE(Secret::FromFile(WriteFile(std::string(4096, 'x'), 0600)).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(Secret::FromFile(WriteFile(std::string(4097, 'x'), 0600)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Secret::FromFile(WriteFile(std::string(100000, 'x'), 0600)).status()));
  EXPECT_FALSE(Secret::FromBytes("short").ok());
}

TEST(SecretTest, WhatIsNoFileIsRefusedWithoutWaiting) {
  EXPECT_TRUE(absl::IsNotFound(Secret::FromFile("/nonexistent/secret").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Secret::FromFile(testing::TempDir()).status()));
  const std::string pipe = testing::TempDir() + "/secret_test_pipe";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Secret::FromFile(pipe).status()));
}

TEST(SecretTest, RandomOnesDiffer) {
  const Secret a = Secret::Random(), b = Secret::Random();
  EXPECT_GE(a.bytes().size(), Secret::kMinBytes);
  EXPECT_NE(Text(a), Text(b));
}

}  // namespace
}  // namespace ringfill
