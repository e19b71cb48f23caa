// Holds docs/metrics.md to what a daemon exports.
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

struct Family {
  std::string type;
  std::set<std::string> labels;
  bool operator==(const Family&) const = default;
};

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.type << " {" << absl::StrJoin(family.labels, ", ") << "}";
}

using Families = std::map<std::string, Family>;

// Of `{name="value",...}`; values may hold any character, quotes escaped.
std::set<std::string> LabelNames(const std::string& line) {
  std::set<std::string> names;
  size_t at = line.find('{');
  while (at != std::string::npos && line[at] != '}') {
    const size_t equals = line.find('=', ++at);
    if (equals == std::string::npos) break;
    names.insert(line.substr(at, equals - at));
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) at += line[at] == '\\';
    if (++at >= line.size()) break;
  }
  return names;
}

// "# TYPE name type" lines, each followed by its family's series. All of them must have the same
// labels, other than those that the text format adds to histograms and summaries.
Families Exported(const std::string& body) {
  Families families;
  Family* family = nullptr;
  bool first = true;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      family = &families[words[2]];
      family->type = words[3];
      first = true;
    } else if (family != nullptr && !line.empty() && line[0] != '#') {
      std::set<std::string> labels = LabelNames(line);
      if (family->type == "histogram") labels.erase("le");
      if (family->type == "summary") labels.erase("quantile");
      if (!first) {
        EXPECT_EQ(labels, family->labels) << line;
      }
      family->labels = std::move(labels);
      first = false;
    }
  }
  return families;
}

// Rows "| `name` | type | `label`, `label` | ...".
Families Documented() {
  std::ifstream in(std::string(RINGFILL_SOURCE_DIR) + "/docs/metrics.md");
  EXPECT_TRUE(in.good());
  Families families;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    EXPECT_GT(cells.size(), 5u) << line;
    const std::vector<std::string> name = absl::StrSplit(cells[1], '`');
    EXPECT_EQ(families.count(name[1]), 0u) << name[1] << " is listed twice";
    Family& family = families[name[1]];
    family.type = std::string(absl::StripAsciiWhitespace(cells[2]));
    const std::vector<std::string> quoted = absl::StrSplit(cells[3], '`');
    for (size_t i = 1; i < quoted.size(); i += 2) family.labels.insert(quoted[i]);
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
  for (const auto& [name, family] : Exported(body)) {
    EXPECT_THAT(body, testing::HasSubstr("# HELP " + name + " "));
  }
}

}  // namespace
}  // namespace ringfill
