// Holds docs/metrics.md to what a daemon exports.
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

using Families = std::map<std::string, std::string>;  // name to type

// "# TYPE name type" lines.
Families Exported(const std::string& body) {
  Families families;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    families[words[2]] = words[3];
  }
  return families;
}

// Rows "| `name` | type | ...".
Families Documented() {
  std::ifstream in(std::string(RINGFILL_SOURCE_DIR) + "/docs/metrics.md");
  EXPECT_TRUE(in.good());
  Families families;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    const std::string name = cells[0].substr(3, cells[0].size() - 4);
    EXPECT_EQ(families.count(name), 0u) << name << " is listed twice";
    families[name] = cells[1];
  }
  return families;
}

TEST(MetricsDocTest, ListsExactlyWhatAFreshDaemonExports) {
  TestDaemon daemon;
  const std::string body = HttpGet(daemon.daemon().metrics_address(), "/metrics");
  const Families exported = Exported(body);
  EXPECT_GT(exported.size(), 10u);
  EXPECT_EQ(exported, Documented());
}

TEST(MetricsDocTest, RequestsAddNoFamily) {
  TestDaemon daemon;
  const auto families = [&] {
    return Exported(HttpGet(daemon.daemon().metrics_address(), "/metrics"));
  };
  const Families before = families();
  ASSERT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(500), 5)).status.ok());
  EXPECT_EQ(families(), before);
}

TEST(MetricsDocTest, EveryFamilyHasHelp) {
  TestDaemon daemon;
  const std::string body = HttpGet(daemon.daemon().metrics_address(), "/metrics");
  for (const auto& [name, type] : Exported(body)) {
    EXPECT_THAT(body, testing::HasSubstr("# HELP " + name + " "));
  }
}

}  // namespace
}  // namespace ringfill
