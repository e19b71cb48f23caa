// The CPU device's forward passes against the plain reference, on both streams.
#include "engine/compute/cpu/cpu_device.h"

#include <cmath>
#include <random>
#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/engine/compute/cpu/raw_ring.h"
#include "tests/testing/late_device.h"
#include "tests/testing/load_model.h"
#include "tests/testing/reference_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

std::vector<TokenId> RandomTokens(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<TokenId>(rng() % 384));
  return out;
}

std::vector<TokenId> Part(const std::vector<TokenId>& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<ptrdiff_t>(begin),
          tokens.begin() + static_cast<ptrdiff_t>(end)};
}

// A seed of 0 stands for the inline stream.
HostStreamFactory StreamOf(int seed) {
  return seed == 0 ? HostStreamFactory(MakeInlineStream) : LateStreams(static_cast<uint64_t>(seed));
}

struct Types {
  DType dtype, kv;
  double tolerance;  // of logits of order one
};

class ForwardTest : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  int stripe() const { return std::get<1>(GetParam()); }

  RawRingOptions Options(const Types& types) const {
    RawRingOptions options;
    options.ranks = ranks();
    options.threads = 1 + stripe() % 2;
    options.stripe_tokens = stripe();
    options.model.dtype = types.dtype;
    options.model.kv_dtype = types.kv;
    options.make_stream = StreamOf(std::get<2>(GetParam()));
    return options;
  }

  // Rows of a sequence from position `begin` on.
  void ExpectNear(const RawRing::Rows& got, const std::vector<std::vector<float>>& want,
                  const std::vector<TokenId>& tokens, size_t begin, double tolerance) {
    for (size_t i = 0; i < got.logits.size(); ++i) {
      const std::vector<float>& row = want[begin + i];
      for (size_t v = 0; v < row.size(); ++v) {
        ASSERT_NEAR(got.logits[i][v], row[v], tolerance) << "position " << begin + i;
      }
      if (i < got.next_logprob.size()) {
        ASSERT_NEAR(got.next_logprob[i], ReferenceLogprob(row, tokens[begin + i + 1]),
                    2 * tolerance)
            << "position " << begin + i;
      }
    }
  }

  const std::shared_ptr<const Model> model_ = LoadModelOrDie(WriteTinyModel({}));
};

const Types kTypes[] = {{DType::kF32, DType::kF32, 1e-3},
                        {DType::kF32, DType::kBF16, 5e-2},
                        {DType::kBF16, DType::kBF16, 2e-1}};

TEST_P(ForwardTest, PrefillEqualsTheReference) {
  const std::vector<TokenId> tokens = RandomTokens(137, 1);
  const auto want = ReferenceLogits(*model_, tokens);
  for (const Types& types : kTypes) {
    RawRing ring(model_, Options(types));
    RawSequence sequence = ring.NewSequence();
    // In two chunks: the second sees the first through the cache.
    const size_t cut = 70;
    ExpectNear(ring.Prefill({{&sequence, Part(tokens, 0, cut)}})[0], want, tokens, 0,
               types.tolerance);
    ExpectNear(ring.Prefill({{&sequence, Part(tokens, cut, tokens.size())}})[0], want, tokens, cut,
               types.tolerance);
  }
}

TEST_P(ForwardTest, ReplicatedTokensEqualTheReference) {
  const std::vector<TokenId> tokens = RandomTokens(60, 2);
  const auto want = ReferenceLogits(*model_, tokens);
  for (const Types& types : kTypes) {
    RawRing ring(model_, Options(types));
    RawSequence sequence = ring.NewSequence();
    size_t at = 0;
    for (const size_t n : {1, 1, 37, 2, 19}) {
      ExpectNear(ring.Replicate({{&sequence, Part(tokens, at, at + n)}})[0], want, tokens, at,
                 types.tolerance);
      at += n;
    }
  }
}

TEST_P(ForwardTest, ModesMixOverSeveralSequences) {
  const Types& types = kTypes[0];
  RawRing ring(model_, Options(types));
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<std::vector<float>>> want;
  std::vector<RawSequence> sequences;
  const int lengths[] = {90, 41, 1};
  for (int s = 0; s < 3; ++s) {
    tokens.push_back(RandomTokens(lengths[s] + 12, static_cast<uint32_t>(10 + s)));
    want.push_back(ReferenceLogits(*model_, tokens.back()));
    sequences.push_back(ring.NewSequence());
  }
  std::vector<RawRing::Chunk> chunks, steps;
  for (size_t s = 0; s < 3; ++s) {
    chunks.push_back({&sequences[s], Part(tokens[s], 0, static_cast<size_t>(lengths[s]))});
  }
  const auto rows = ring.Prefill(chunks);
  for (size_t s = 0; s < 3; ++s) ExpectNear(rows[s], want[s], tokens[s], 0, types.tolerance);
  // All decode together, a different number of tokens each.
  for (size_t s = 0; s < 3; ++s) {
    const auto at = static_cast<size_t>(lengths[s]);
    steps.push_back({&sequences[s], Part(tokens[s], at, at + 1 + 4 * s)});
  }
  const auto decoded = ring.Replicate(steps);
  for (size_t s = 0; s < 3; ++s) {
    ExpectNear(decoded[s], want[s], tokens[s], static_cast<size_t>(lengths[s]), types.tolerance);
  }
}

// Stripes of one token leave positions far apart in a page.
INSTANTIATE_TEST_SUITE_P(Rings, ForwardTest,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 16, 24),
                                          testing::Values(0, 1, 2, 3)),
                         [](const auto& info) {
                           return "ranks" + std::to_string(std::get<0>(info.param)) + "_stripe" +
                                  std::to_string(std::get<1>(info.param)) + "_seed" +
                                  std::to_string(std::get<2>(info.param));
                         });

TEST(CpuDeviceTest, OtherGeometries) {
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{4, 4, 64}, {9, 3, 64}, {8, 2, 80}, {8, 1, 128}}) {
    TinyModelOptions tiny;
    tiny.heads = heads;
    tiny.kv_heads = kv_heads;
    tiny.head_dim = head_dim;
    tiny.layers = 3;
    tiny.rope_dims = 32;
    tiny.SetMatrixTypes(WeightType::kQ8_0);
    const auto model = LoadModelOrDie(WriteTinyModel(tiny));
    const std::vector<TokenId> tokens = RandomTokens(80, 3);
    const auto want = ReferenceLogits(*model, tokens);
    for (const CpuIsa isa : AvailableCpuIsas()) {
      RawRingOptions options;
      options.ranks = 3;
      options.model.isa = isa;
      RawRing ring(model, options);
      RawSequence sequence = ring.NewSequence();
      const auto prefilled = ring.Prefill({{&sequence, Part(tokens, 0, 60)}})[0];
      const auto replicated = ring.Replicate({{&sequence, Part(tokens, 60, 80)}})[0];
      for (size_t t = 0; t < tokens.size(); ++t) {
        const std::vector<float>& got = t < 60 ? prefilled.logits[t] : replicated.logits[t - 60];
        for (size_t v = 0; v < got.size(); ++v) {
          ASSERT_NEAR(got[v], want[t][v], 1e-3) << CpuIsaName(isa) << " heads " << heads;
        }
      }
    }
  }
}

// One token over many pages: threads share its KV and their states merge.
TEST(CpuDeviceTest, TokensSplitALongRunOverThreads) {
  TinyModelOptions tiny;
  tiny.kv_heads = 1;
  const auto model = LoadModelOrDie(WriteTinyModel(tiny));
  const std::vector<TokenId> tokens = RandomTokens(602, 6);
  const auto want = ReferenceLogits(*model, tokens);
  for (const int ranks : {1, 2}) {
    RawRingOptions options;
    options.ranks = ranks;
    options.threads = 4;
    options.make_stream = LateStreams(7);
    RawRing ring(model, options);
    RawSequence sequence = ring.NewSequence();
    ring.Prefill({{&sequence, Part(tokens, 0, 600)}});
    for (size_t t = 600; t < 602; ++t) {
      const auto rows = ring.Replicate({{&sequence, {tokens[t]}}})[0];
      for (size_t v = 0; v < rows.logits[0].size(); ++v) {
        ASSERT_NEAR(rows.logits[0][v], want[t][v], 1e-3) << "position " << t;
      }
    }
  }
}

// What strict numerics rest on: the final state of a row has equal bits whatever its batch.
TEST(CpuDeviceTest, BitsOfARowDoNotDependOnItsBatch) {
  const auto model = LoadModelOrDie(WriteTinyModel({}));
  const std::vector<TokenId> tokens = RandomTokens(230, 4), others = RandomTokens(77, 5);
  for (const CpuIsa isa : AvailableCpuIsas()) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      std::vector<std::vector<float>> want;
      for (const int tile_rows : {256, 64, 16}) {
        for (const int query_tokens : {48, 5}) {
          for (const size_t cut : {230, 100}) {
            RawRingOptions options;
            options.threads = 2;
            options.tile_rows = tile_rows;
            options.query_tokens = query_tokens;
            options.model.isa = isa;
            options.model.dtype = type;
            options.model.kv_dtype = type;
            options.model.strict = true;
            RawRing ring(model, options);
            RawSequence other = ring.NewSequence(), sequence = ring.NewSequence();
            // Beside another prompt, so that its rows begin anywhere in a tile.
            auto rows =
                ring.Prefill({{&other, others}, {&sequence, Part(tokens, 0, cut)}})[1].hidden;
            if (cut < tokens.size()) {
              const auto rest =
                  ring.Prefill({{&sequence, Part(tokens, cut, tokens.size())}})[0].hidden;
              rows.insert(rows.end(), rest.begin(), rest.end());
            }
            if (want.empty()) want = rows;
            ASSERT_EQ(rows, want) << CpuIsaName(isa) << " " << DTypeName(type) << " tiles of "
                                  << tile_rows << " and " << query_tokens << " cut " << cut;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfill
