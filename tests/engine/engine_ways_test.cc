// The whole engine in every mode, strategy, layout and transport, for any number of ranks.
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/comm/tcp/tcp.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/late_device.h"
#include "tests/testing/reference_model.h"
#include "tests/testing/tcp_ring.h"

namespace ringfill {
namespace {

struct Geometry {
  int layers, heads, kv_heads, head_dim;
};
constexpr Geometry kGeometries[] = {
    {1, 4, 4, 64}, {2, 9, 3, 64}, {3, 8, 2, 64},  {2, 8, 1, 64},  {2, 4, 4, 80},  {1, 9, 3, 80},
    {2, 8, 2, 80}, {3, 8, 1, 80}, {3, 4, 4, 128}, {2, 9, 3, 128}, {1, 8, 2, 128}, {2, 8, 1, 128},
};

struct Way3 {
  std::optional<TokenMode> mode;
  std::optional<RingStrategy> strategy;
};
std::vector<Way3> Ways() {
  std::vector<Way3> out{{std::nullopt, std::nullopt}, {TokenMode::kReplicated, std::nullopt}};
  for (TokenMode mode : {TokenMode::kHome, TokenMode::kDealt}) {
    for (RingStrategy strategy :
         {RingStrategy::kPassKv, RingStrategy::kGatherKv, RingStrategy::kPassQ}) {
      out.push_back({mode, strategy});
    }
  }
  return out;
}

// A model of each geometry, prompts for it, and what the reference says, made once a process.
struct Case {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::vector<TokenId>> prompts;
  // Greedy continuations by the engine differ only where margins are thin, so the reference runs
  // over what the engine chose; kept by the whole sequence.
  std::map<std::vector<TokenId>, Logits> references;
};

constexpr int kNewTokens = 3;

Case& CaseOf(size_t geometry) {
  static std::map<size_t, Case>* const cases = new std::map<size_t, Case>;
  Case& at = (*cases)[geometry];
  if (at.model != nullptr) return at;
  const Geometry& g = kGeometries[geometry];
  TinyModelOptions tiny;
  tiny.layers = g.layers;
  tiny.heads = g.heads;
  tiny.kv_heads = g.kv_heads;
  tiny.head_dim = g.head_dim;
  tiny.width = 96;
  at.model = LoadModelOrDie(WriteTinyModel(tiny));
  at.tokenizer = LoadTokenizerOrDie(*at.model);
  for (size_t length : {1u, 7u, 150u}) {
    at.prompts.push_back(RandomPrompt(length, tiny.vocab, static_cast<uint32_t>(length)));
  }
  return at;
}

void ExpectMatchesCached(Case& at, const std::vector<TokenId>& prompt, const Outcome& outcome) {
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  std::vector<TokenId> all = prompt;
  for (TokenId id : outcome.ids()) all.push_back(id);
  const auto [found, is_new] = at.references.try_emplace(all);
  if (is_new) found->second = ReferenceLogits(*at.model, all);
  ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(kNewTokens));
  ExpectMatches(found->second, prompt.size(), outcome, 1e-3);
}

// All prompts at once, packed in the same steps.
void RunAll(Case& at, const EngineOptions& options) {
  EngineRunner runner(at.model, at.tokenizer, options);
  std::vector<std::unique_ptr<Client>> clients;
  for (const auto& prompt : at.prompts) {
    auto client = Client::Start(runner.engine(), Greedy(prompt, kNewTokens));
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("prompt of ", at.prompts[i].size()));
    ExpectMatchesCached(at, at.prompts[i], clients[i]->Finish());
  }
  EXPECT_EQ(runner.PagesUsedWhenIdle(), 0);
  EXPECT_EQ(runner.engine().Status().failed_steps, 0);
}

std::string Describe(const EngineOptions& o) {
  return absl::StrCat("ranks ", o.ranks, ", layout ", std::string(LayoutName(o.layout)), ", mode ",
                      o.mode.has_value() ? std::string(TokenModeName(*o.mode)) : "auto",
                      ", strategy ",
                      o.strategy.has_value() ? std::string(RingStrategyName(*o.strategy)) : "auto");
}

// Every geometry over `local`; a third of them over tcp, of which the passes' own tests see all.
std::vector<std::tuple<size_t, bool>> GeometriesAndTransports() {
  std::vector<std::tuple<size_t, bool>> out;
  for (size_t i = 0; i < std::size(kGeometries); ++i) {
    out.emplace_back(i, false);
    if (i % 3 == 0) out.emplace_back(i, true);
  }
  return out;
}

class EngineWaysTest : public testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(EngineWaysTest, MatchTheReference) {
  const auto [geometry, tcp] = GetParam();
  Case& at = CaseOf(geometry);
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (Layout layout :
         {Layout::kSnake, Layout::kContiguous, Layout::kZigzag, Layout::kTokenStripes}) {
      for (const Way3& way : Ways()) {
        EngineOptions options = SmallOptions(ranks);
        options.chunk_tokens = 96;
        options.layout = layout;
        options.mode = way.mode;
        options.strategy = way.strategy;
        SCOPED_TRACE(Describe(options));
        TcpRing ring;
        if (tcp) {
          options.workers =
              EngineRunner::ThreadsWith(at.model, options, [&](ThreadWorkersOptions& threads) {
                threads.make_group = [&](int n, uint64_t epoch) { return ring.Form(n, epoch); };
              });
        }
        RunAll(at, options);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Geometries, EngineWaysTest, testing::ValuesIn(GeometriesAndTransports()),
                         [](const auto& info) {
                           const Geometry& g = kGeometries[std::get<0>(info.param)];
                           return absl::StrCat("layers", g.layers, "heads", g.heads, "kv",
                                               g.kv_heads, "dim", g.head_dim,
                                               std::get<1>(info.param) ? "tcp" : "local");
                         });

// Code above the device that reads before what it reads was written shows on streams that run late.
class EngineLateTest : public testing::TestWithParam<int> {};

TEST_P(EngineLateTest, MatchesTheReference) {
  const int seed = GetParam();
  Case& at = CaseOf(static_cast<size_t>(seed) % std::size(kGeometries));
  const std::vector<Way3> ways = Ways();
  for (int i = 0; i < 3; ++i) {
    EngineOptions options = SmallOptions(1 + (seed + 2 * i) % 5);
    options.chunk_tokens = 96;
    const Way3& way = ways[static_cast<size_t>(seed + 3 * i) % ways.size()];
    options.mode = way.mode;
    options.strategy = way.strategy;
    options.strict = seed % 7 == 3 && !way.mode.has_value();
    SCOPED_TRACE(Describe(options));
    options.workers =
        EngineRunner::ThreadsWith(at.model, options, [&](ThreadWorkersOptions& threads) {
          threads.make_stream = LateStreams(static_cast<uint64_t>(seed));
        });
    RunAll(at, options);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineLateTest, testing::Range(0, 50));

}  // namespace
}  // namespace ringfill
