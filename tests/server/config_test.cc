#include "server/app/config.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/text.h"

namespace ringfill {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string YamlError(std::string_view yaml) {
  Config config = DefaultConfig();
  const absl::Status status = ApplyConfigYaml(yaml, "my.yaml", config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << yaml;
  return Message(status);
}

std::string SettingError(std::string_view setting) {
  Config config = DefaultConfig();
  const absl::Status status = ApplySetting(setting, config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << setting;
  return Message(status);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Source(const std::string& path) {
  return std::string(RINGFILL_SOURCE_DIR) + "/" + path;
}

TEST(ConfigTableTest, KeysAreUniqueAndGroupedBySection) {
  std::vector<std::string> sections;
  for (const ConfigKey& key : ConfigTable()) {
    EXPECT_EQ(FindConfigKey(key.name), &key);
    EXPECT_FALSE(key.description.empty()) << key.name;
    const std::string section(key.name.substr(0, key.name.find('.')));
    if (!sections.empty() && sections.back() == section) continue;
    EXPECT_EQ(std::count(sections.begin(), sections.end(), section), 0) << key.name;
    sections.push_back(section);
  }
}

// Every key starts with a value that is not its default, so that a default that is missing in the
// file shows.
TEST(ConfigTableTest, DefaultYamlSetsEveryKeyToItsDefault) {
  std::string yaml = ReadFile(Source("config/default.yaml"));
  Config config = DefaultConfig();
  for (const ConfigKey& key : ConfigTable()) {
    if (const auto* field = std::get_if<int64_t Config::*>(&key.field)) config.** field = -7;
    if (const auto* field = std::get_if<double Config::*>(&key.field)) config.** field = -7;
    if (const auto* field = std::get_if<std::string Config::*>(&key.field)) config.** field = "-7";
    if (const auto* field = std::get_if<bool Config::*>(&key.field)) {
      config.** field = key.default_text == "false";
    }
  }
  ASSERT_TRUE(ApplyConfigYaml(yaml, "default.yaml", config).ok());
  EXPECT_EQ(PrintConfig(config), PrintConfig(DefaultConfig()));
}

TEST(ConfigTableTest, QuickstartYamlIsValid) {
  ASSERT_EQ(setenv("RINGFILL_MODEL", "/models/a.gguf", 1), 0);
  Config config = DefaultConfig();
  ASSERT_TRUE(ApplyConfigFile(Source("config/quickstart.yaml"), config).ok());
  ASSERT_TRUE(SettleConfig(config).ok());
  EXPECT_EQ(config.model_path, "/models/a.gguf");
  EXPECT_EQ(config.ranks_count, 2);
}

TEST(ConfigTableTest, PrintedConfigReadsBackTheSame) {
  Config config = DefaultConfig();
  for (const std::string_view setting :
       {"model.path=a \"quoted\" \\ path: #1", "kv.memory_bytes=3GiB", "compute.dtype=bf16",
        "server.drain_timeout_s=0.25", "metrics.listen=", "kv.page_tokens=32",
        "ring.start_workers=false", "ranks.weights=2,1.5", "ring.gather_bytes=3MiB"}) {
    ASSERT_TRUE(ApplySetting(setting, config).ok()) << setting;
  }
  Config read = DefaultConfig();
  const absl::Status status = ApplyConfigYaml(PrintConfig(config), "printed", read);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(read.model_path, config.model_path);
  EXPECT_EQ(read.server_drain_timeout_s, 0.25);
  EXPECT_FALSE(read.ring_start_workers);
  EXPECT_EQ(read.ranks_weights, "2,1.5");
  EXPECT_EQ(PrintConfig(read), PrintConfig(config));
}

TEST(ConfigTableTest, HelpNamesEveryKey) {
  const std::string help = ConfigHelp();
  for (const ConfigKey& key : ConfigTable()) {
    EXPECT_THAT(help, HasSubstr(Concat(key.name, " = ")));
  }
}

TEST(ConfigValueTest, ReadsEachKind) {
  Config config = DefaultConfig();
  ASSERT_TRUE(ApplyConfigYaml("server:\n"
                              "  listen: '[::1]:0'\n"
                              "  max_message_bytes: 1 MiB\n"
                              "  slow_client_timeout_s: 0.5\n"
                              "ranks: {count: 3}\n"
                              "kv: {memory_bytes: 512MiB, dtype: f32}\n"
                              "metrics: {listen: \"\"}\n",
                              "f", config)
                  .ok());
  EXPECT_EQ(config.server_listen, "[::1]:0");
  EXPECT_EQ(config.server_max_message_bytes, 1 << 20);
  EXPECT_EQ(config.server_slow_client_timeout_s, 0.5);
  EXPECT_EQ(config.ranks_count, 3);
  EXPECT_EQ(config.kv_memory_bytes, int64_t{512} << 20);
  EXPECT_EQ(config.kv_dtype, "f32");
  EXPECT_EQ(config.metrics_listen, "");
}

TEST(ConfigValueTest, BytesTakeSuffixes) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},
      {"1234", 1234},
      {"7B", 7},
      {"2KiB", 2048},
      {"2GiB", int64_t{2} << 30},
      {"1TiB", int64_t{1} << 40},
      {"3kB", 3000},
      {"5MB", 5000000},
      {"4 GB", 4000000000},
  };
  for (const auto& [text, bytes] : cases) {
    Config config = DefaultConfig();
    ASSERT_TRUE(ApplySetting(Concat("kv.memory_bytes=", text), config).ok()) << text;
    EXPECT_EQ(config.kv_memory_bytes, bytes) << text;
  }
}

TEST(ConfigValueTest, RefusesBadValuesWithWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {
      {"ranks.count=0", "from 1 to 64"},
      {"ranks.count=65", "from 1 to 64"},
      {"ranks.count=-1", "from 1 to 64"},
      {"ranks.count=2.5", "an integer"},
      {"ranks.count= 2", "an integer"},
      {"ranks.count=+2", "an integer"},
      {"ranks.count=two", "an integer"},
      {"ranks.count=", "an integer"},
      {"ranks.count=99999999999999999999", "an integer"},
      {"kv.page_tokens=17", "divisible by 16"},
      {"kv.memory_bytes=1.5GiB", "bytes"},
      {"kv.memory_bytes=-1", "bytes"},
      {"kv.memory_bytes=9999999999TiB", "bytes"},
      {"kv.memory_bytes=GiB", "bytes"},
      {"kv.dtype=fp8", "auto, f32 or bf16"},
      {"compute.isa=AVX2", "auto, baseline, avx2, avx512 or avx512_bf16"},
      {"log.level=loud", "debug, info, warning or error"},
      {"server.drain_timeout_s=nan", "seconds from 0 to 86400"},
      {"server.drain_timeout_s=inf", "seconds"},
      {"server.drain_timeout_s=1e999", "seconds"},
      {"server.drain_timeout_s=-1", "seconds"},
      {"server.max_message_bytes=3GiB", "from 64KiB to 2147483647"},
      {"server.listen=", "HOST:PORT"},
      {"server.listen=50051", "HOST:PORT"},
      {"server.listen=:50051", "HOST:PORT"},
      {"server.listen=127.0.0.1:", "HOST:PORT"},
      {"server.listen=127.0.0.1:65536", "HOST:PORT"},
      {"server.listen=::1:5", "HOST:PORT"},
      {"server.listen=unix:/tmp/x", "HOST:PORT"},
      {"ring.strategy=passkv", "auto, pass-kv, gather-kv or pass-q"},
      {"ring.mode=sharded", "auto, home, dealt or replicated"},
      {"sharding.layout=striped", "snake, contiguous, zigzag or token-stripes"},
      {"compute.numerics=exact", "fast or strict"},
      {"ring.start_workers=yes", "true or false"},
      {"ring.start_workers=", "true or false"},
      {"ranks.weights=2,,1", "positive numbers separated by commas"},
      {"ranks.weights=2,-1", "positive numbers"},
      {"ranks.weights=0", "positive numbers"},
      {"ranks.weights=inf,1", "positive numbers"},
      {"ranks.weights=even", "auto"},
      {"ring.join_timeout_s=0", "seconds from 0.1"},
      {"trace.max_spans=0", "from 1"},
      {"kv.memory_fraction=1", "from 0.05 to 0.98"},
  };
  for (const auto& [setting, allowed] : cases) {
    const std::string key(setting, std::string_view(setting).find('='));
    EXPECT_THAT(SettingError(setting), AllOf(HasSubstr(key), HasSubstr(allowed))) << setting;
  }
}

TEST(ConfigValueTest, UnknownSettingsNameTheNearestKey) {
  EXPECT_THAT(SettingError("kv.pagetokens=64"), HasSubstr("did you mean \"kv.page_tokens\"?"));
  EXPECT_THAT(SettingError("sever.listen=1"), HasSubstr("did you mean \"server.listen\"?"));
  EXPECT_THAT(SettingError("model.threads=1"), HasSubstr("did you mean \"compute.threads\"?"));
  EXPECT_THAT(SettingError("zzzzzzzzzzzzz=1"), HasSubstr("the keys are server.listen, "));
  EXPECT_THAT(SettingError("ranks.count"), HasSubstr("key=value"));
}

TEST(ConfigYamlTest, ErrorsNameFileAndLine) {
  EXPECT_THAT(YamlError("ranks:\n  count: 0\n"), StartsWith("my.yaml:2: ranks.count: \"0\""));
  EXPECT_THAT(
      YamlError("\nranks:\n  cuont: 1\n"),
      AllOf(StartsWith("my.yaml:3: unknown key \"ranks.cuont\""), HasSubstr("\"ranks.count\"")));
  EXPECT_THAT(YamlError("rank:\n  count: 1\n"), StartsWith("my.yaml:1: unknown key \"rank\""));
  EXPECT_THAT(YamlError("rank: {}\n"), StartsWith("my.yaml:1: unknown key \"rank\""));
  EXPECT_THAT(YamlError("rank:\n"), StartsWith("my.yaml:1: unknown key \"rank\""));
  EXPECT_THAT(YamlError("kv:\n  dtype: f32\nranks: [1\n"), StartsWith("my.yaml:"));
  EXPECT_THAT(YamlError("kv: {dtype: f32}\n\tx: 1\n"), StartsWith("my.yaml:2: "));
}

TEST(ConfigYamlTest, RefusesWhatIsNotAMapOfSections) {
  EXPECT_THAT(YamlError("- a\n"), HasSubstr("must be a map"));
  EXPECT_THAT(YamlError("hello\n"), HasSubstr("must be a map"));
  EXPECT_THAT(YamlError("ranks: 3\n"), HasSubstr("ranks is a section"));
  EXPECT_THAT(YamlError("ranks: [3]\n"), HasSubstr("lists"));
  EXPECT_THAT(YamlError("ranks: {count: [3]}\n"), HasSubstr("lists"));
  EXPECT_THAT(YamlError("ranks: {count: {a: 1}}\n"), HasSubstr("takes a value"));
  EXPECT_THAT(YamlError("ranks: {count: }\n"), HasSubstr("no value"));
  EXPECT_THAT(YamlError("ranks: {count: null}\n"), HasSubstr("no value"));
  EXPECT_THAT(YamlError("ranks: {count: ~}\n"), HasSubstr("no value"));
  EXPECT_THAT(YamlError("? {a: b}\n: 1\n"), HasSubstr("must be a name"));
  EXPECT_THAT(YamlError("? [a]\n: 1\n"), HasSubstr("lists"));
  EXPECT_THAT(YamlError("~: 1\n"), HasSubstr("missing its name"));
  EXPECT_THAT(YamlError("ranks: {count: 1}\n---\nranks: {count: 2}\n"),
              HasSubstr("second document"));
}

TEST(ConfigYamlTest, RefusesRepeatedKeysAliasesAndTags) {
  EXPECT_THAT(YamlError("ranks: {count: 1, count: 2}\n"), HasSubstr("set twice"));
  EXPECT_THAT(YamlError("ranks: {count: 1}\nranks: {count: 2}\n"), HasSubstr("set twice"));
  EXPECT_THAT(YamlError("ranks.count: 1\nranks:\n  count: 2\n"), HasSubstr("set twice"));
  EXPECT_THAT(YamlError("ranks: &a {count: 1}\n"), HasSubstr("anchors"));
  EXPECT_THAT(YamlError("ranks: &a\n  count: 1\nkv: *a\n"), HasSubstr("anchors"));
  EXPECT_THAT(YamlError("ranks: {count: !!int 3}\n"), HasSubstr("tags"));
  EXPECT_THAT(YamlError("ranks: !x {count: 3}\n"), HasSubstr("tags"));
  EXPECT_THAT(YamlError("a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"), StartsWith("my.yaml:1: "));
}

TEST(ConfigYamlTest, HostileFilesGiveErrors) {
  EXPECT_THAT(YamlError(std::string(kMaxConfigBytes + 1, '#')), HasSubstr("larger than"));
  EXPECT_THAT(YamlError(std::string(200000, '[')), StartsWith("my.yaml:"));
  EXPECT_THAT(YamlError(std::string(200000, '{')), StartsWith("my.yaml:"));
  EXPECT_THAT(YamlError("ranks: {count: " + std::string(100000, '9') + "}"),
              AllOf(HasSubstr("ranks.count"), HasSubstr("from 1 to 64")));
  EXPECT_THAT(YamlError(std::string("\0\x01\xff\xfe", 4)), StartsWith("my.yaml:"));
  EXPECT_THAT(YamlError("ranks: {count: \"\\xZZ\"}"), StartsWith("my.yaml:1: "));
  EXPECT_THAT(YamlError("%YAML 9.9\n---\nranks: 1\n"), StartsWith("my.yaml:"));
}

TEST(ConfigYamlTest, TakesOnlyUtf8WithoutNul) {
  for (const std::string& bad :
       {std::string("\0ranks: {count: 3}", 18), std::string("x\0", 2), std::string("\x80"),
        std::string("\xc0\x80"), std::string("\xe0\x80\x80"), std::string("\xed\xa0\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xf5"), std::string("\xe2\x82"),
        std::string("\xff\xfer\0", 4)}) {
    EXPECT_THAT(YamlError("# one\n# " + bad), StartsWith("my.yaml:2: not UTF-8 text (byte "));
    EXPECT_THAT(YamlError("# one\n# " + bad + "\nranks: {count: 3}\n"), HasSubstr("not UTF-8"));
  }
  Config config = DefaultConfig();
  const std::string good =
      "\xef\xbb\xbf# \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\nranks: {count: 3}\n";
  EXPECT_TRUE(ApplyConfigYaml(good, "f", config).ok());
  EXPECT_EQ(config.ranks_count, 3);
}

TEST(ConfigYamlTest, EmptyFilesAndSectionsKeepTheDefaults) {
  for (const std::string_view yaml : {"", "\n# nothing\n", "---\n", "ranks:\n", "ranks: {}\n"}) {
    Config config = DefaultConfig();
    const absl::Status status = ApplyConfigYaml(yaml, "f", config);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(PrintConfig(config), PrintConfig(DefaultConfig()));
  }
}

TEST(ConfigFileTest, UnreadableFilesAreNamed) {
  Config config = DefaultConfig();
  EXPECT_THAT(Message(ApplyConfigFile("/nonexistent/a.yaml", config)),
              HasSubstr("/nonexistent/a.yaml"));
  EXPECT_THAT(Message(ApplyConfigFile("/tmp", config)), HasSubstr("directory"));
}

TEST(SettleConfigTest, ExpandsHomeAndVariables) {
  ASSERT_EQ(setenv("HOME", "/home/x", 1), 0);
  ASSERT_EQ(setenv("RINGFILL_A", "aa", 1), 0);
  const std::pair<const char*, const char*> cases[] = {
      {"~/m.gguf", "/home/x/m.gguf"},
      {"~", "/home/x"},
      {"a~/m", "a~/m"},
      {"${RINGFILL_A}/${RINGFILL_A}.gguf", "aa/aa.gguf"},
      {"$RINGFILL_A", "$RINGFILL_A"},
      {"plain.gguf", "plain.gguf"},
  };
  for (const auto& [path, expanded] : cases) {
    Config config = DefaultConfig();
    config.model_path = path;
    const absl::Status status = SettleConfig(config);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(config.model_path, expanded);
  }
}

TEST(SettleConfigTest, RefusesWhatCannotBeExpandedOrDoesNotFit) {
  ASSERT_EQ(unsetenv("RINGFILL_UNSET"), 0);
  Config config = DefaultConfig();
  EXPECT_THAT(Message(SettleConfig(config)), HasSubstr("model.path is not set"));
  config.model_path = "${RINGFILL_UNSET}";
  EXPECT_THAT(Message(SettleConfig(config)), HasSubstr("RINGFILL_UNSET is not set"));
  config.model_path = "${RINGFILL";
  EXPECT_THAT(Message(SettleConfig(config)), HasSubstr("without"));
  config.model_path = "m";
  config.sharding_stripe_tokens = 96;
  EXPECT_THAT(Message(SettleConfig(config)),
              AllOf(HasSubstr("sharding.stripe_tokens (96)"), HasSubstr("kv.page_tokens (64)")));
}

TEST(SettleConfigTest, ErrorsNameTheLinesThatAFileSet) {
  ASSERT_EQ(unsetenv("RINGFILL_UNSET"), 0);
  Config config = DefaultConfig();
  ASSERT_TRUE(ApplyConfigYaml("model:\n  path: ${RINGFILL_UNSET}/m\nkv:\n  page_tokens: 32\n"
                              "sharding:\n  stripe_tokens: 48\n",
                              "my.yaml", config)
                  .ok());
  EXPECT_EQ(Message(SettleConfig(config)),
            "my.yaml:2: model.path: the environment variable RINGFILL_UNSET is not set");
  ASSERT_TRUE(ApplySetting("model.path=m", config).ok());
  EXPECT_EQ(Message(SettleConfig(config)),
            "sharding.stripe_tokens (48 at my.yaml:6) must be a multiple of kv.page_tokens (32 at "
            "my.yaml:4)");
  // What the command line set last no longer comes from the file.
  ASSERT_TRUE(ApplySetting("kv.page_tokens=64", config).ok());
  EXPECT_THAT(Message(SettleConfig(config)), HasSubstr("kv.page_tokens (64)"));
  ASSERT_TRUE(ApplySetting("model.path=", config).ok());
  EXPECT_THAT(Message(SettleConfig(config)), StartsWith("model.path is not set"));
}

std::string SettleError(const std::vector<std::string>& settings) {
  Config config = DefaultConfig();
  config.model_path = "m";
  for (const std::string& setting : settings) {
    EXPECT_TRUE(ApplySetting(setting, config).ok()) << setting;
  }
  return Message(SettleConfig(config));
}

TEST(SettleConfigTest, StrictNumericsFixHowPromptsAreComputed) {
  EXPECT_EQ(SettleError({"compute.numerics=strict"}), "");
  EXPECT_EQ(
      SettleError({"compute.numerics=strict", "ring.mode=dealt"}),
      "ring.mode (dealt) must be auto with compute.numerics (strict), which fixes how prompts "
      "are computed");
  EXPECT_THAT(SettleError({"compute.numerics=strict", "ring.strategy=pass-q"}),
              StartsWith("ring.strategy (pass-q) must be auto"));
  EXPECT_THAT(SettleError({"compute.numerics=strict", "sharding.layout=zigzag"}),
              StartsWith("sharding.layout (zigzag) must be snake"));
  EXPECT_EQ(SettleError({"ring.mode=dealt", "ring.strategy=pass-q", "sharding.layout=zigzag"}), "");
}

TEST(SettleConfigTest, EachRankHasAWeight) {
  EXPECT_EQ(SettleError({"ranks.count=3", "ranks.weights=2,1,1"}), "");
  EXPECT_EQ(SettleError({"ranks.count=3", "ranks.weights=auto"}), "");
  EXPECT_EQ(SettleError({"ranks.count=3", "ranks.weights=2"}),
            "ranks.weights (2) has 1 value; it must have one for each rank: ranks.count (3)");
}

TEST(SettleConfigTest, WorkersElsewhereNeedASecret) {
  const std::string processes = "ring.transport=processes";
  EXPECT_EQ(SettleError({processes}), "");
  EXPECT_EQ(SettleError({processes, "ring.listen=[::1]:0"}), "");
  EXPECT_THAT(SettleError({processes, "ring.listen=0.0.0.0:7000"}),
              AllOf(HasSubstr("ring.listen (0.0.0.0:7000)"), HasSubstr("ring.secret_file")));
  EXPECT_THAT(SettleError({processes, "ring.listen=127.example.org:7000"}),
              HasSubstr("ring.secret_file"));
  EXPECT_THAT(SettleError({processes, "ring.start_workers=false"}),
              AllOf(HasSubstr("ring.start_workers (false)"), HasSubstr("ring.secret_file")));
  EXPECT_EQ(SettleError({processes, "ring.start_workers=false", "ring.listen=0.0.0.0:7000",
                         "ring.secret_file=/s"}),
            "");
  EXPECT_EQ(SettleError({"ring.listen=0.0.0.0:7000"}), "") << "unused with threads";
}

TEST(SettleConfigTest, GpusOfProcessesAreNamedWhereTheyAreStarted) {
  const std::string processes = "ring.transport=processes", cuda = "ranks.backend=cuda";
  EXPECT_EQ(SettleError({processes, cuda}), "");
  EXPECT_EQ(SettleError({processes, cuda, "ranks.count=2", "ranks.devices=1,3"}), "");
  EXPECT_EQ(SettleError({"ranks.count=3", "ranks.devices=1,3,1"}),
            "ranks.devices (1,3,1) names a GPU twice: each rank needs its own");
  EXPECT_EQ(SettleError({cuda, "compute.numerics=strict"}),
            "compute.numerics (strict) is there on the CPU alone, not with ranks.backend (cuda)");
  EXPECT_EQ(SettleError({processes, cuda, "ranks.devices=1,3"}),
            "ranks.devices (1,3) must name a GPU for each rank: ranks.count (1)");
  EXPECT_EQ(SettleError({processes, "ranks.devices=1"}),
            "ranks.devices (1) needs ranks.backend cuda with ring.transport (processes)");
  EXPECT_EQ(SettleError({processes, cuda, "ranks.devices=1", "ring.start_workers=false",
                         "ring.secret_file=/s"}),
            "ranks.devices (1) is for workers that the daemon starts: with ring.start_workers "
            "(false) give each worker its --device");
}

TEST(SettleConfigTest, ExpandsEveryPath) {
  ASSERT_EQ(setenv("RINGFILL_A", "aa", 1), 0);
  Config config = DefaultConfig();
  config.model_path = "m";
  config.ring_secret_file = "${RINGFILL_A}/secret";
  config.trace_path = "${RINGFILL_A}.json";
  ASSERT_TRUE(SettleConfig(config).ok());
  EXPECT_EQ(config.ring_secret_file, "aa/secret");
  EXPECT_EQ(config.trace_path, "aa.json");
  ASSERT_EQ(unsetenv("RINGFILL_UNSET"), 0);
  config.trace_path = "${RINGFILL_UNSET}";
  EXPECT_THAT(Message(SettleConfig(config)), StartsWith("trace.path: "));
}

}  // namespace
}  // namespace ringfill
