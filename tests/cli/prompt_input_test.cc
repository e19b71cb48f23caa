#include "cli/prompt_input.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/test_console.h"

namespace ringfill::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(ParseTokenIds, TakesAnArrayOrAnObject) {
  EXPECT_THAT(ParseTokenIds("[1, 0, 4294967295]").value(), ElementsAre(1u, 0u, 4294967295u));
  EXPECT_THAT(ParseTokenIds(R"({"text": "x", "token_ids": [7]})").value(), ElementsAre(7u));
  EXPECT_THAT(ParseTokenIds("[]").value(), ElementsAre());
}

TEST(ParseTokenIds, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {{"[1, -2]", "token_ids[1]"},
                                                       {"[4294967296]", "token_ids[0]"},
                                                       {"[1.5]", "token_ids[0]"},
                                                       {"[\"1\"]", "token_ids[0]"},
                                                       {"{\"ids\": []}", "token_ids"},
                                                       {"7", "array"},
                                                       {"[1, 2", "too early, after byte 5"},
                                                       {"", "too early, after byte 0"},
                                                       {"[1, x]", "syntax error at byte 5"},
                                                       {"[1e999]", "out of range"}};
  for (const auto& [json, expected] : cases) {
    const absl::StatusOr<std::vector<uint32_t>> ids = ParseTokenIds(json);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr(expected)) << json;
    EXPECT_THAT(std::string(ids.status().message()), Not(HasSubstr("exception"))) << json;
  }
}

TEST(ReadInput, ReadsWholeFilesAndStandardInput) {
  std::string bytes(200'001, 'x');
  bytes[100'000] = '\0';
  TestConsole t;
  EXPECT_EQ(ReadInput(WriteFile("whole.txt", bytes), t.console).value(), bytes);
  EXPECT_EQ(ReadInput(WriteFile("empty.txt", ""), t.console).value(), "");
  t.in.str(bytes);
  EXPECT_EQ(ReadInput("-", t.console).value(), bytes);
}

TEST(ReadInput, RefusesWhatCannotBeRead) {
  TestConsole t;
  const absl::Status missing = ReadInput("/nonexistent/prompt.txt", t.console).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/prompt.txt: No such file"));
  EXPECT_FALSE(ReadInput(::testing::TempDir(), t.console).ok()) << "a folder";
}

TEST(BuildPrompt, RepairsUtf8WithANote) {
  TestConsole t;
  PromptOptions options;
  options.file = WriteFile("latin1.txt", "caf\xe9!");
  const v1::Prompt prompt = BuildPrompt(options, t.console).value();
  EXPECT_EQ(prompt.text(), "caf\xef\xbf\xbd!");
  EXPECT_THAT(t.err.str(), HasSubstr("latin1.txt is not valid UTF-8"));
  EXPECT_THAT(t.err.str(), HasSubstr("at byte 3"));
}

TEST(BuildPrompt, SendsChatAsMessages) {
  TestConsole t;
  PromptOptions options;
  options.text = "Why?";
  options.chat = true;
  options.system = "Be brief.";
  const v1::Prompt prompt = BuildPrompt(options, t.console).value();
  ASSERT_EQ(prompt.chat().messages_size(), 2);
  EXPECT_EQ(prompt.chat().messages(0).role(), "system");
  EXPECT_EQ(prompt.chat().messages(0).content(), "Be brief.");
  EXPECT_EQ(prompt.chat().messages(1).role(), "user");
  EXPECT_EQ(prompt.chat().messages(1).content(), "Why?");
}

TEST(BuildPrompt, SpecialTokensOnlyWhenAsked) {
  TestConsole t;
  PromptOptions options;
  options.text = "<|im_start|>";
  EXPECT_FALSE(BuildPrompt(options, t.console).value().parse_special());
  options.special = true;
  EXPECT_TRUE(BuildPrompt(options, t.console).value().parse_special());
}

TEST(BuildPrompt, ReadsTokenIds) {
  TestConsole t;
  PromptOptions options;
  options.token_ids_file = "-";
  t.in.str("[5, 6]");
  EXPECT_THAT(BuildPrompt(options, t.console).value().token_ids().ids(), ElementsAre(5u, 6u));
}

}  // namespace
}  // namespace ringfill::cli
