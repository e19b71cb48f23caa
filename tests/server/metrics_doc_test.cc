// What a daemon exports: what docs/metrics.md says, bounded, and moved by what happens.
#include <fstream>
#include <map>
#include <ostream>
#include <random>
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

std::set<std::string> Series(const std::string& body) {
  std::set<std::string> series;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') series.insert(line.substr(0, line.rfind(' ')));
  }
  return series;
}

// What people name tenants, models and prompts: none of it may become a label.
std::string LabelLike(std::mt19937& random) {
  static constexpr char kCharacters[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:={}\",' ";
  std::string value(1 + random() % 40, ' ');
  for (char& c : value) c = kCharacters[random() % (sizeof(kCharacters) - 1)];
  return value;
}

constexpr size_t kMostSeries = 500;

TEST(MetricsSeriesTest, AreFewForEightRanksToo) {
  TestDaemon daemon({"ranks.count=8"});
  const size_t series = Series(HttpGet(daemon.daemon().metrics_address(), "/metrics")).size();
  RecordProperty("series", std::to_string(series));
  EXPECT_LT(series, kMostSeries);
}

// In the string fields of all calls but Generate. `computed`: the Score is good.
void SendLabels(TestDaemon& daemon, std::mt19937& random, bool computed) {
  EXPECT_EQ(HealthOf(daemon.channel(), LabelLike(random)),
            std::to_string(grpc::StatusCode::NOT_FOUND));
  const auto deadline = std::chrono::system_clock::now() + kHangLimit;
  grpc::ClientContext tokenizing, scoring;
  tokenizing.set_deadline(deadline);
  scoring.set_deadline(deadline);
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->set_text(LabelLike(random));
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(daemon.stub().Tokenize(&tokenizing, tokenize, &tokens).ok());
  v1::ScoreRequest score;
  score.set_request_id(LabelLike(random));
  if (computed) {
    score.mutable_prompt()->set_text(LabelLike(random) + " and more");
  } else {
    v1::ChatMessage& message = *score.mutable_prompt()->mutable_chat()->add_messages();
    message.set_role("nobody " + LabelLike(random));
    message.set_content(LabelLike(random));
  }
  v1::ScoreResponse scores;
  EXPECT_EQ(daemon.stub().Score(&scoring, score, &scores).ok(), computed);
}

TEST(MetricsSeriesTest, NothingThatClientsSendMakesSeries) {
  constexpr int kValues = 10000;
  constexpr int kComputed = 100;  // every so many requests are good, the others end early
  TestDaemon daemon;
  const auto series = [&] {
    return Series(HttpGet(daemon.daemon().metrics_address(), "/metrics"));
  };
  const std::set<std::string> before = series();
  EXPECT_LT(before.size(), kMostSeries);
  std::mt19937 random(1);
  int good = 0;
  for (int i = 0; i < kValues; ++i) {
    v1::GenerateRequest request;
    if (i % 2 == 0) {
      request.mutable_prompt()->set_text(LabelLike(random));
    } else {
      v1::ChatMessage& message = *request.mutable_prompt()->mutable_chat()->add_messages();
      message.set_role(LabelLike(random));
      message.set_content(LabelLike(random));
    }
    request.set_request_id(LabelLike(random));
    request.mutable_stopping()->add_stop(LabelLike(random));
    request.mutable_stopping()->set_max_tokens(1);
    if (i % kComputed != 0) request.mutable_sampling()->set_top_p(9);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kHangLimit);
    context.AddMetadata("traceparent", LabelLike(random));
    context.AddMetadata("x-tenant", LabelLike(random));
    const auto reader = daemon.stub().Generate(&context, request);
    for (v1::GenerateEvent event; reader->Read(&event);) {
    }
    good += reader->Finish().ok();
    SendLabels(daemon, random, i % kComputed == 0);
  }
  EXPECT_EQ(good, kValues / kComputed);
  EXPECT_EQ(series(), before);
}

// Every phase of a request, step and round of communication is counted.
TEST(MetricsValuesTest, ARequestIsCountedInAllItsParts) {
  constexpr int kPrompt = 500, kTokens = 6;
  TestDaemon daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(kPrompt), kTokens);
  ASSERT_TRUE(Generate(daemon.stub(), request).status.ok());
  ASSERT_TRUE(daemon.BecomesIdle());
  const auto metric = [&](const std::string& series, const std::string& holds = "") {
    return daemon.Metric("ringfill_" + series, holds);
  };
  EXPECT_EQ(metric("request_success_total", "length"), 1);
  EXPECT_EQ(metric("request_success_total"), 1);
  for (const char* phase : {"queue", "prefill", "decode"}) {
    EXPECT_EQ(metric(std::string("request_") + phase + "_time_seconds_count"), 1) << phase;
  }
  EXPECT_EQ(metric("request_prompt_tokens_sum"), kPrompt);
  EXPECT_EQ(metric("request_generation_tokens_sum"), kTokens);
  EXPECT_EQ(metric("step_seconds_count"), metric("steps_total"));
  EXPECT_EQ(metric("step_seconds_count", "decode"), kTokens - 1);
  EXPECT_EQ(metric("step_prefill_tokens_sum"), kPrompt);
  EXPECT_EQ(metric("step_decode_tokens_sum"), kTokens - 1);
  // Four all-gathers a layer on both ranks, of decodes at least.
  const double layers = daemon.daemon().engine().model().config().layers;
  const double gathers = metric("communication_rounds_total", "all_gather");
  EXPECT_GE(gathers, 2 * 4 * layers * (kTokens - 1));
  EXPECT_EQ(gathers, metric("all_gather_seconds_count"));
  EXPECT_GT(metric("all_gather_bytes_total"), 0);
  const double rounds = metric("communication_rounds_total", "kind=\"ring\"");
  EXPECT_EQ(rounds, metric("ring_round_seconds_count"));
  EXPECT_GE(metric("softmax_states_total", "merged"), layers * kPrompt);
  EXPECT_EQ(metric("nonfinite_requests_total"), 0);
  EXPECT_EQ(metric("memory_bytes", "kv_pages"), metric("kv_capacity_bytes"));
  EXPECT_GT(metric("memory_bytes", "weights"), 0);
  EXPECT_GT(metric("memory_bytes", "buffers"), 0);
  EXPECT_GT(metric("memory_bytes", "scratch"), 0);
  EXPECT_EQ(metric("configured_ranks"), 2);
  EXPECT_EQ(metric("kv_usage_ratio"), 0);
  EXPECT_EQ(metric("kv_capacity_tokens"), metric("kv_pages") * metric("kv_page_tokens"));
  EXPECT_TRUE(Eventually([&] { return metric("seconds_since_step") == 0; }));
  EXPECT_EQ(metric("oldest_queued_seconds"), 0);
}

// While a step computes, or nobody is admitted, ages grow.
TEST(MetricsValuesTest, AgesGrowWhileRequestsWait) {
  TestDaemon daemon({"scheduler.max_running_requests=1", "server.outbox_events=8"});
  grpc::ClientContext first, second;
  v1::GenerateRequest long_one = GenerateOf(TokenPrompt(20), 10000);
  long_one.set_logprobs(64);  // nobody reads it: it stays
  const auto running = daemon.stub().Generate(&first, long_one);
  ASSERT_TRUE(Eventually([&] { return daemon.Status().running() == 1; }));
  const auto waiting = daemon.stub().Generate(&second, GenerateOf(TokenPrompt(20), 1));
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("ringfill_oldest_queued_seconds") > 0.5; }));
  EXPECT_EQ(daemon.Metric("ringfill_queue_length"), 1);
  EXPECT_GT(daemon.Metric("ringfill_kv_usage_ratio"), 0);
  second.TryCancel();
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("ringfill_oldest_queued_seconds") == 0; }));
  first.TryCancel();
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
