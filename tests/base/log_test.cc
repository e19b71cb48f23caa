#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace ringfill {
namespace {

using nlohmann::json;

// What `body` writes to stderr, line by line, each parsed.
template <typename Body>
std::vector<json> Logged(Body body) {
  testing::internal::CaptureStderr();
  body();
  std::istringstream text(testing::internal::GetCapturedStderr());
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(parsed.is_discarded()) << "not JSON: " << line;
    lines.push_back(std::move(parsed));
  }
  return lines;
}

TEST(LogTest, OneObjectALine) {
  const auto lines = Logged([] {
    Log(LogLevel::kInfo, "model loaded", {{"path", "/a b/\"c\""}, {"layers", 30}, {"f", 0.5}});
    Log(LogLevel::kWarning, "two\nlines");
    Log(LogLevel::kError, "");
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[0]["message"], "model loaded");
  EXPECT_EQ(lines[0]["path"], "/a b/\"c\"");
  EXPECT_EQ(lines[0]["layers"], 30);
  EXPECT_EQ(lines[0]["f"], 0.5);
  EXPECT_THAT(lines[0]["time"].get<std::string>(),
              testing::ContainsRegex(
                  "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z$"));
  EXPECT_EQ(lines[1]["message"], "two\nlines");
  EXPECT_EQ(lines[2]["level"], "error");
}

TEST(LogTest, ContextIsInEveryLine) {
  SetLogContext({{"rank", 1}, {"epoch", 7}});
  const auto lines = Logged([] {
    Log(LogLevel::kInfo, "a");
    Log(LogLevel::kInfo, "b", {{"epoch", 8}});
    SetLogContext(json::object());
    Log(LogLevel::kInfo, "c");
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["rank"], 1);
  EXPECT_EQ(lines[0]["epoch"], 7);
  EXPECT_EQ(lines[1]["epoch"], 8) << "a line's own field wins";
  EXPECT_FALSE(lines[2].contains("rank"));
}

TEST(LogTest, InvalidUtf8IsReplaced) {
  const std::string bad = "a\xff\xc3(\xe2\x82 \xf0\x9f z";
  const auto lines = Logged([&] {
    Log(LogLevel::kInfo, bad, {{"value", bad}, {bad, {1, bad}}});
    Log(LogLevel::kInfo, std::string("nul \0 and \x1b", 11), {{"braces", "{} {0} %s"}});
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0]["value"].get<std::string>(), testing::HasSubstr("\xef\xbf\xbd"));
  EXPECT_EQ(lines[0]["message"], lines[0]["value"]);
  EXPECT_EQ(lines[1]["braces"], "{} {0} %s");
  EXPECT_EQ(lines[1]["message"].get<std::string>().size(), 11u);
}

TEST(LogTest, LinesBelowTheLevelAreDropped) {
  const auto lines = Logged([] {
    Log(LogLevel::kDebug, "dropped");
    EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
    SetLogLevel(LogLevel::kDebug);
    EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
    Log(LogLevel::kDebug, "kept");
    SetLogLevel(LogLevel::kError);
    EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
    Log(LogLevel::kWarning, "dropped");
    Log(LogLevel::kError, "kept");
    SetLogLevel(LogLevel::kInfo);
  });
  ASSERT_EQ(lines.size(), 2u);
  for (const json& line : lines) EXPECT_EQ(line["message"], "kept");
}

TEST(LogTest, LinesOfSeveralThreadsDoNotMix) {
  const auto lines = Logged([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i) Log(LogLevel::kInfo, std::string(100, 'x'), {{"t", t}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(lines.size(), 800u);
}

}  // namespace
}  // namespace ringfill
