#include "cli/format.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Generation SmallGeneration() {
  Generation generation;
  generation.text = "A\"\n";
  v1::Token& token = generation.tokens.emplace_back();
  token.set_token_id(7);
  token.set_logprob(-0.5f);
  v1::TokenLogprob& top = *token.add_top();
  top.set_token_id(9);
  top.set_logprob(-0.25f);
  v1::Done& done = generation.done;
  done.set_finish_reason(v1::FINISH_REASON_STOP);
  done.mutable_usage()->set_prompt_tokens(2000);
  done.mutable_usage()->set_cached_tokens(0);
  done.mutable_usage()->set_completion_tokens(11);
  done.mutable_timings()->set_queue_ms(0.5);
  done.mutable_timings()->set_prefill_ms(1000);
  done.mutable_timings()->set_ttft_ms(1001);
  done.mutable_timings()->set_decode_ms(100);
  v1::RankShare& rank = *done.add_ranks();
  rank.set_rank(1);
  rank.set_busy_ms(75);
  rank.set_wait_ms(25);
  rank.set_kv_pages(16);
  return generation;
}

TEST(GenerationJson, HasTheDocumentedShape) {
  EXPECT_EQ(
      DumpJson(GenerationJson(SmallGeneration(), true)),
      R"({"text":"A\"\n","token_ids":[7],"finish_reason":"stop",)"
      R"("usage":{"prompt_tokens":2000,"cached_tokens":0,"completion_tokens":11},)"
      R"("timings":{"queue_ms":0.5,"prefill_ms":1000.0,"ttft_ms":1001.0,"decode_ms":100.0},)"
      R"("ranks":[{"rank":1,"busy_ms":75.0,"wait_ms":25.0,"kv_pages":16}],)"
      R"("logprobs":[{"token_id":7,"logprob":-0.5,"top":[{"token_id":9,"logprob":-0.25}]}]})");
}

TEST(GenerationJson, LeavesLogprobsOutUnlessAsked) {
  EXPECT_FALSE(GenerationJson(SmallGeneration(), false).contains("logprobs"));
}

TEST(DumpJson, NeverThrows) {
  EXPECT_EQ(DumpJson({{"text", "\xff"}}), "{\"text\":\"\xef\xbf\xbd\"}");
  EXPECT_EQ(DumpJson({{"x", std::numeric_limits<double>::quiet_NaN()}}), "{\"x\":null}");
}

TEST(StatsTable, ShowsRatesAndShares) {
  const std::string table = StatsTable(SmallGeneration().done);
  EXPECT_THAT(table, HasSubstr("2,000 prompt, 0 cached, 11 generated"));
  EXPECT_THAT(table, HasSubstr("prefill      1.00 s  2,000 tok/s"));
  EXPECT_THAT(table, HasSubstr("decode       100 ms  100.0 tok/s"));
  EXPECT_THAT(table, HasSubstr("rank 1       busy 75 ms (75 %), wait 25 ms, 16 KV pages"));
}

TEST(Tables, OneIsSingular) {
  v1::Done done;
  done.add_ranks()->set_kv_pages(1);
  EXPECT_THAT(StatsTable(done), HasSubstr(", 1 KV page\n"));
  v1::GetStatusResponse status;
  status.set_failed_steps(1);
  status.set_recomputed_tokens(1);
  EXPECT_THAT(StatusTable(status, {}), HasSubstr("1 failed step, 1 token recomputed\n"));
}

TEST(StatsTable, OneTokenHasNoDecodeRate) {
  v1::Done done;
  done.mutable_usage()->set_completion_tokens(1);
  const std::string table = StatsTable(done);
  EXPECT_THAT(table, Not(HasSubstr("tok/s")));
  EXPECT_THAT(table, Not(HasSubstr("nan")));
}

TEST(StatusJson, CarriesModelAndRanks) {
  v1::GetStatusResponse status;
  status.set_version("0.1.0");
  v1::RankStatus& rank = *status.add_ranks();
  rank.set_kv_pages_used(3);
  rank.set_busy_s(3);
  rank.set_wait_s(1);
  rank.set_ring_bytes(1000);
  rank.set_transfer_s(0.5);
  rank.set_hidden_s(0.375);
  rank.set_slots(4);
  v1::TokenShare& mode = *status.add_modes();
  mode.set_name("dealt");
  mode.set_tokens(12);
  status.set_imbalance(1.25);
  status.set_numerics("strict");
  v1::GetModelResponse model;
  model.set_name("tiny");
  const nlohmann::ordered_json json = StatusJson(status, model);
  EXPECT_EQ(json["version"], "0.1.0");
  EXPECT_EQ(json["ranks"][0]["kv_pages_used"], 3);
  EXPECT_EQ(json["ranks"][0]["slots"], 4);
  EXPECT_EQ(json["ranks"][0]["busy_share"], 0.75);
  EXPECT_EQ(json["ranks"][0]["ring_bytes_per_s"], 2000);
  EXPECT_EQ(json["ranks"][0]["hidden_share"], 0.75);
  EXPECT_EQ(json["ring_ranks"], 1);
  EXPECT_EQ(json["mode_tokens"]["dealt"], 12);
  EXPECT_EQ(json["imbalance"], 1.25);
  EXPECT_EQ(json["numerics"], "strict");
  EXPECT_EQ(json["model"]["name"], "tiny");
  EXPECT_FALSE(json["model"].contains("bos_token_id"));
}

TEST(StatusJson, NothingMeasuredIsZero) {
  v1::GetStatusResponse status;
  status.add_ranks();
  const nlohmann::ordered_json json = StatusJson(status, {});
  for (const char* key : {"busy_share", "ring_bytes_per_s", "hidden_share"}) {
    EXPECT_EQ(json["ranks"][0][key], 0) << key;
  }
}

TEST(StatusTable, NamesTheModelAndEachRank) {
  v1::GetStatusResponse status;
  status.set_running(1);
  status.set_seconds_since_progress(0.5);
  status.set_kv_bytes(3 << 20);
  status.set_transport("threads");
  status.set_layout("snake");
  status.set_slots(4);
  status.set_epoch(1);
  status.set_ring_formed(true);
  status.set_configured_ranks(1);
  status.add_ranks()->set_kv_pages_total(1200);
  v1::GetModelResponse model;
  model.set_name("tiny");
  const std::string table = StatusTable(status, model);
  EXPECT_THAT(table, HasSubstr("tiny"));
  EXPECT_THAT(table, HasSubstr("3.0 MiB"));
  EXPECT_THAT(table, HasSubstr("last progress 500 ms ago"));
  EXPECT_THAT(table, HasSubstr("ring       1 rank as threads, snake over 4 slots, epoch 1\n\n"));
  EXPECT_THAT(table, HasSubstr("rank  slots  KV pages used"));
  EXPECT_THAT(table, HasSubstr("0     0      0 of 1,200     0.0 ms  -  0.0 ms  0 B   -   -\n"));
  EXPECT_THAT(table, Not(HasSubstr("prompts"))) << "none was computed";
  EXPECT_THAT(table, Not(HasSubstr("repairs")));
}

TEST(StatusTable, SaysWhichRanksAreMissing) {
  v1::GetStatusResponse status;
  status.set_transport("processes");
  status.set_configured_ranks(3);
  status.add_ranks();
  status.add_ranks();
  EXPECT_THAT(StatusTable(status, {}),
              HasSubstr("ring       none is formed; configured: 3 ranks as processes\n"));
  status.set_ring_formed(true);
  EXPECT_THAT(StatusTable(status, {}), HasSubstr("ring       2 of 3 ranks as processes, "));
}

TEST(StatusTable, ShowsHowPromptsWereComputedAndHowWellItWent) {
  v1::GetStatusResponse status;
  const auto share = [](v1::TokenShare& entry, const char* name, uint64_t tokens) {
    entry.set_name(name);
    entry.set_tokens(tokens);
  };
  share(*status.add_modes(), "home", 100);
  share(*status.add_modes(), "dealt", 300);
  share(*status.add_modes(), "replicated", 0);
  share(*status.add_strategies(), "pass-q", 400);
  status.set_imbalance(1.034);
  status.set_failed_steps(2);
  status.set_recomputed_tokens(1500);
  v1::RankStatus& rank = *status.add_ranks();
  rank.set_rank(1);
  rank.set_slots(4);
  rank.set_busy_s(9);
  rank.set_wait_s(1);
  rank.set_ring_bytes(4 << 20);
  rank.set_transfer_s(0.5);
  rank.set_hidden_s(0.45);
  const std::string table = StatusTable(status, {});
  EXPECT_THAT(table, HasSubstr("prompts    computed dealt 75 %, home 25 %\n"));
  EXPECT_THAT(table, HasSubstr("           attended pass-q 100 %\n"));
  EXPECT_THAT(table, HasSubstr("balance    busiest rank 1.03 times the mean\n"));
  EXPECT_THAT(table, HasSubstr("repairs    2 failed steps, 1,500 tokens recomputed\n"));
  EXPECT_THAT(table,
              HasSubstr("1     4      0 of 0         9.00 s  90 %  1.00 s  4.0 MiB  8.0 MiB/s  "
                        "90 %\n"));
}

}  // namespace
}  // namespace ringfill::cli
