// The programs that write models: what they write loads, computes, and is what was asked for.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_runner.h"
#include "tests/testing/test_files.h"
#include "tools/model/cut_model.h"
#include "tools/model/make_model.h"

namespace ringfill {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ModelToolsTest : public ::testing::Test {
 protected:
  ModelToolsTest() { std::filesystem::create_directory(folder_); }
  ~ModelToolsTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string Contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::string MakeError(TinyModelOptions options) const {
    const absl::Status made = MakeModel(options, Path("bad.gguf"));
    EXPECT_EQ(made.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(Path("bad.gguf")));
    return std::string(made.message());
  }

  const std::string folder_ = ::testing::TempDir() + "model_tools_" + std::to_string(getpid());
};

void ExpectSame(const WeightMatrix& a, const WeightMatrix& b) {
  ASSERT_EQ(a.type, b.type);
  ASSERT_EQ(a.rows, b.rows);
  ASSERT_EQ(a.cols, b.cols);
  EXPECT_EQ(std::memcmp(a.data, b.data, a.rows * WeightRowBytes(a.type, a.cols)), 0);
}

// The first layers of the original, and all that is not of a layer.
void ExpectCutOf(const Model& whole, const Model& cut, int layers) {
  EXPECT_EQ(cut.config().layers, layers);
  EXPECT_EQ(cut.config().trained_context, whole.config().trained_context);
  EXPECT_EQ(cut.config().name, whole.config().name);
  ExpectSame(cut.embedding(), whole.embedding());
  ExpectSame(cut.output(), whole.output());
  EXPECT_EQ(cut.output_norm(), whole.output_norm());
  EXPECT_EQ(cut.config().rope.factors, whole.config().rope.factors);
  ASSERT_EQ(cut.layers().size(), static_cast<size_t>(layers));
  for (size_t l = 0; l < cut.layers().size(); ++l) {
    const LayerWeights& a = cut.layers()[l];
    const LayerWeights& b = whole.layers()[l];
    EXPECT_EQ(a.attention_norm, b.attention_norm);
    EXPECT_EQ(a.ffn_norm, b.ffn_norm);
    for (const auto matrix :
         {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o,
          &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
      ExpectSame(a.*matrix, b.*matrix);
    }
  }
}

std::vector<TokenId> Answer(const std::string& path, int ranks) {
  EngineOptions options;
  options.ranks = ranks;
  options.threads = ranks;
  options.dtype = DType::kF32;
  EngineRunner runner(path, options);
  Request request;
  for (int i = 0; i < 150; ++i) request.prompt.push_back(3 + i * 7 % 200);
  request.stop.max_tokens = 6;
  request.stop.ignore_eos = true;
  const Outcome outcome = runner.Run(std::move(request));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  return outcome.ids();
}

TEST_F(ModelToolsTest, MakesEachGeometry) {
  const struct {
    int layers, heads, kv_heads, head_dim;
  } cases[] = {{1, 4, 4, 64}, {2, 9, 3, 64}, {3, 8, 2, 80}, {2, 8, 1, 128}};
  for (const auto& c : cases) {
    TinyModelOptions options;
    options.layers = c.layers;
    options.heads = c.heads;
    options.kv_heads = c.kv_heads;
    options.head_dim = c.head_dim;
    options.context_length = 131072;
    ASSERT_TRUE(MakeModel(options, Path("m.gguf")).ok());
    const auto model = Model::Load(Path("m.gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelConfig& config = (*model)->config();
    EXPECT_EQ(config.layers, c.layers);
    EXPECT_EQ(config.heads, c.heads);
    EXPECT_EQ(config.kv_heads, c.kv_heads);
    EXPECT_EQ(config.head_dim, c.head_dim);
    EXPECT_EQ(config.trained_context, 131072);
    EXPECT_TRUE(Tokenizer::FromGguf((*model)->file()).ok());
  }
}

TEST_F(ModelToolsTest, TheSameOptionsGiveTheSameBytes) {
  TinyModelOptions options;
  ASSERT_TRUE(MakeModel(options, Path("a")).ok() && MakeModel(options, Path("b")).ok());
  options.seed = 2;
  ASSERT_TRUE(MakeModel(options, Path("c")).ok());
  EXPECT_EQ(Contents(Path("a")), Contents(Path("b")));
  EXPECT_NE(Contents(Path("a")), Contents(Path("c")));
}

TEST_F(ModelToolsTest, RefusesGeometriesThatFitNoModel) {
  TinyModelOptions options;
  options.heads = 5;
  EXPECT_EQ(MakeError(options), "heads is 5; it must be a multiple of kv-heads, 2");
  options = {};
  options.head_dim = 15;
  EXPECT_THAT(MakeError(options), StartsWith("head-dim is 15; it must be a multiple of 2 "));
  options = {};
  options.vocab = 100;
  EXPECT_THAT(MakeError(options), StartsWith("vocab is 100; it must be from 259"));
  options = {};
  options.layers = 0;
  EXPECT_THAT(MakeError(options), StartsWith("layers is 0"));
  options = {};
  options.ffn_width = 100;
  options.SetMatrixTypes(WeightType::kQ4_1);
  EXPECT_THAT(MakeError(options), StartsWith("ffn is 100; it must be a multiple of 32"));
  options = {};
  options.head_dim = 12;
  options.o = WeightType::kQ8_0;
  EXPECT_THAT(MakeError(options), StartsWith("heads times head-dim is 48"));
}

TEST_F(ModelToolsTest, CutsTheFirstLayers) {
  for (const bool tied : {true, false}) {
    TinyModelOptions options;
    options.layers = 4;
    options.tied = tied;
    options.rope_freqs = !tied;
    options.q = WeightType::kQ4_1;
    options.down = WeightType::kQ8_0;
    options.v = WeightType::kBF16;
    ASSERT_TRUE(MakeModel(options, Path("whole")).ok());
    const auto whole = Model::Load(Path("whole")).value();
    for (int layers = 1; layers <= 4; ++layers) {
      const absl::Status cut = CutModel(Path("whole"), layers, Path("cut"));
      ASSERT_TRUE(cut.ok()) << cut;
      const auto model = Model::Load(Path("cut")).value();
      ExpectCutOf(*whole, *model, layers);
      const auto tokenizer = Tokenizer::FromGguf(model->file()).value();
      EXPECT_EQ(tokenizer->vocab_size(), options.vocab);
    }
  }
}

TEST_F(ModelToolsTest, AFullCutIsTheSameFile) {
  TinyModelOptions options;
  options.layers = 3;
  ASSERT_TRUE(MakeModel(options, Path("whole")).ok());
  ASSERT_TRUE(CutModel(Path("whole"), 3, Path("cut")).ok());
  EXPECT_EQ(Contents(Path("whole")), Contents(Path("cut")));
}

TEST_F(ModelToolsTest, ACutModelAnswers) {
  TinyModelOptions options;
  options.layers = 4;
  ASSERT_TRUE(MakeModel(options, Path("whole")).ok());
  ASSERT_TRUE(CutModel(Path("whole"), 2, Path("cut")).ok());
  const std::vector<TokenId> one = Answer(Path("cut"), 1);
  EXPECT_EQ(one.size(), 6u);
  EXPECT_EQ(Answer(Path("cut"), 2), one);
  EXPECT_NE(Answer(Path("whole"), 1), one);
}

TEST_F(ModelToolsTest, RefusesWhatCannotBeCut) {
  TinyModelOptions options;
  ASSERT_TRUE(MakeModel(options, Path("whole")).ok());
  const std::string before = Contents(Path("whole"));
  for (const int layers : {0, -1, 3}) {
    EXPECT_THAT(std::string(CutModel(Path("whole"), layers, Path("cut")).message()),
                HasSubstr("it must be from 1 to that"));
  }
  EXPECT_THAT(std::string(CutModel(Path("whole"), 1, Path("whole")).message()),
              HasSubstr("is the model itself"));
  EXPECT_THAT(std::string(CutModel(Path("none"), 1, Path("cut")).message()),
              HasSubstr(Path("none")));
  std::ofstream(Path("junk")) << "GGUFjunk";
  EXPECT_FALSE(CutModel(Path("junk"), 1, Path("cut")).ok());
  EXPECT_FALSE(CutModel(Path("whole"), 1, Path("no/folder")).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("cut")));
  EXPECT_EQ(Contents(Path("whole")), before);
}

TEST_F(ModelToolsTest, ProgramsTeachAndReport) {
  std::ostringstream out, err;
  EXPECT_EQ(RunMakeModel({"--help"}, out, err), 0);
  EXPECT_EQ(RunCutModel({"--help"}, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("Examples:"));
  EXPECT_EQ(RunMakeModel({}, out, err), 2);
  EXPECT_EQ(RunCutModel({"--in", "x"}, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("--out is required"));
  EXPECT_EQ(RunMakeModel({"--out", Path("m"), "--type", "q5"}, out, err), 1);
  EXPECT_THAT(err.str(), HasSubstr("type is q5"));
  EXPECT_EQ(RunMakeModel({"--out", Path("m"), "--layers", "3", "--type", "Q8_0"}, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("3 layers, width 64, 4 heads, 2 KV heads of 16"));
  EXPECT_EQ(RunCutModel({"--in", Path("m"), "--out", Path("c"), "--layers", "2"}, out, err), 0);
  EXPECT_THAT(out.str(), HasSubstr("wrote " + Path("c") + ": 2 layers"));
  EXPECT_EQ(RunCutModel({"--in", Path("m"), "--out", Path("c"), "--layers", "9"}, out, err), 1);
}

TEST_F(ModelToolsTest, CutsARealModel) {
  const std::string path = TestModelPath();
  if (path.empty()) GTEST_SKIP() << "the model is missing; tools/fetch_model.sh fetches it";
  const absl::Status cut = CutModel(path, 2, Path("cut"));
  ASSERT_TRUE(cut.ok()) << cut;
  const auto whole = Model::Load(path).value();
  const auto model = Model::Load(Path("cut")).value();
  ExpectCutOf(*whole, *model, 2);
  const auto a = Tokenizer::FromGguf(whole->file()).value();
  const auto b = Tokenizer::FromGguf(model->file()).value();
  const std::string text = "The quick brown fox, 1234 times.\n";
  EXPECT_EQ(a->Encode(text, {}).value(), b->Encode(text, {}).value());
  EXPECT_EQ(Answer(Path("cut"), 2).size(), 6u);
}

}  // namespace
}  // namespace ringfill
