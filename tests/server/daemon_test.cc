// The RPCs of a daemon in this process, over real connections.
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/app/engine_options.h"
#include "server/app/version.h"
#include "server/app/watcher.h"
#include "server/rpc/rpc_services.h"
#include "tests/server/test_daemon.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(GenerateTest, StreamsEventsInOrder) {
  TestDaemon daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(300), 12);
  request.set_request_id("the id");
  request.set_logprobs(3);
  const Generated out = Generate(daemon.stub(), request);
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  ASSERT_TRUE(out.events.front().has_accepted());
  EXPECT_EQ(out.events.front().accepted().request_id(), "the id");
  EXPECT_EQ(out.events.front().accepted().prompt_tokens(), 300u);
  size_t i = 1;
  while (out.events[i].has_progress()) ++i;
  EXPECT_GT(i, 1u);
  EXPECT_EQ(out.events[i - 1].progress().processed_tokens(), 300u);
  std::string text;
  for (; out.events[i].has_token(); ++i) {
    EXPECT_TRUE(out.events[i].token().has_logprob());
    EXPECT_EQ(out.events[i].token().top_size(), 3);
    text += out.events[i].token().text();
  }
  ASSERT_EQ(i + 1, out.events.size());
  const v1::Done& done = out.events[i].done();
  EXPECT_EQ(done.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(done.usage().prompt_tokens(), 300u);
  EXPECT_EQ(done.usage().completion_tokens(), 12u);
  EXPECT_EQ(out.tokens.size(), 12u);
  EXPECT_EQ(done.ranks_size(), 2);
  EXPECT_GT(done.timings().ttft_ms(), 0);
  EXPECT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(daemon.Metric("ringfill_requests_total", "outcome=\"ok\",rpc=\"Generate\""), 1);
  EXPECT_EQ(daemon.Metric("ringfill_request_seconds_count", "rpc=\"Generate\""), 1);
}

TEST(GenerateTest, RequestIdComesBackAsMetadata) {
  TestDaemon daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(3), 1);
  request.set_request_id("abc");
  grpc::ClientContext context;
  const auto reader = daemon.stub().Generate(&context, request);
  for (v1::GenerateEvent event; reader->Read(&event);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const auto& metadata = context.GetServerInitialMetadata();
  const auto found = metadata.find("x-request-id");
  ASSERT_NE(found, metadata.end());
  EXPECT_EQ(std::string(found->second.data(), found->second.size()), "abc");
}

TEST(GenerateTest, TextAndIdsOfTheSamePromptGiveTheSameTokens) {
  TestDaemon daemon;
  v1::Prompt text;
  text.set_text("hello there, this is a prompt");
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_prompt() = text;
  v1::TokenizeResponse tokenized;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().Tokenize(&context, tokenize, &tokenized).ok());
  v1::Prompt ids;
  *ids.mutable_token_ids()->mutable_ids() = tokenized.token_ids();
  const Generated from_text = Generate(daemon.stub(), GenerateOf(text, 8));
  const Generated from_ids = Generate(daemon.stub(), GenerateOf(ids, 8));
  ASSERT_TRUE(from_text.status.ok() && from_ids.status.ok());
  EXPECT_EQ(from_text.tokens.size(), 8u);
  EXPECT_EQ(from_text.tokens, from_ids.tokens);
}

TEST(GenerateTest, BadRequestsGetTheirStatusAndCostNothing) {
  TestDaemon daemon;
  v1::GenerateRequest request = GenerateOf(TokenPrompt(3), 1);
  request.mutable_sampling()->set_top_p(7);
  Generated out = Generate(daemon.stub(), request);
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(out.status.error_message(), HasSubstr("top_p is 7"));
  EXPECT_TRUE(out.events.empty());
  out = Generate(daemon.stub(), GenerateOf(TokenPrompt(kTinyContext + 1), 1));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(out.status.error_message(), HasSubstr("16385 tokens"));
  ASSERT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(daemon.Metric("ringfill_requests_total", "outcome=\"invalid\",rpc=\"Generate\""), 2);
  EXPECT_EQ(daemon.Status().steps(), 0u);
}

TEST(GenerateTest, PromptsBeyondTheKvPoolAreRefused) {
  // 2 layers x (k, v) x 2 heads x 16 x 4 bytes = 512 bytes a token.
  TestDaemon daemon({"kv.memory_bytes=2MiB"});
  const Generated out = Generate(daemon.stub(), GenerateOf(TokenPrompt(10000), 1));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(daemon.BecomesIdle());
  EXPECT_EQ(daemon.Metric("ringfill_requests_total", "outcome=\"exhausted\",rpc=\"Generate\""), 1);
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(1000), 1)).status.ok());
}

TEST(GenerateTest, MessagesOverTheLimitAreRefused) {
  TestDaemon daemon({"server.max_message_bytes=64KiB"});
  v1::Prompt prompt;
  prompt.set_text(std::string(100000, 'x'));
  const Generated out = Generate(daemon.stub(), GenerateOf(prompt, 1));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(10), 1)).status.ok());
}

// The default limit lets prompts of millions of tokens in; what they ask for is another matter.
TEST(GenerateTest, MillionsOfTokensFitIntoAMessage) {
  TestDaemon daemon;
  constexpr int kMillions = 4000000;
  const v1::GenerateRequest ids = GenerateOf(TokenPrompt(kMillions), 1);
  v1::Prompt prompt;
  prompt.set_text(std::string(20 << 20, 'x'));
  const v1::GenerateRequest text = GenerateOf(prompt, 1);
  for (const v1::GenerateRequest& request : {ids, text}) {
    const Generated out = Generate(daemon.stub(), request);
    EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(out.status.error_message(), HasSubstr("the context holds 16384"));
  }
}

TEST(GenerateTest, AFullQueueRefuses) {
  TestDaemon daemon({"scheduler.max_queued_requests=1", "scheduler.max_running_requests=1",
                     "server.outbox_events=1"});
  const v1::GenerateRequest endless = GenerateOf(TokenPrompt(10), kTinyContext - 10);
  grpc::ClientContext running, queued;
  const auto running_reader = daemon.stub().Generate(&running, endless);
  ASSERT_TRUE(Eventually([&] { return daemon.Status().running() == 1; }));
  const auto queued_reader = daemon.stub().Generate(&queued, endless);
  ASSERT_TRUE(Eventually([&] { return daemon.Status().queued() == 1; }));
  const grpc::Status refused = Generate(daemon.stub(), endless).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(RetryDelay(refused), 1);
  running.TryCancel();
  queued.TryCancel();
  EXPECT_EQ(running_reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(queued_reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(daemon.BecomesIdle());
}

v1::ScoreResponse Score(v1::Ringfill::Stub& stub, const v1::Prompt& prompt) {
  v1::ScoreRequest request;
  *request.mutable_prompt() = prompt;
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub.Score(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

TEST(ScoreTest, EqualsThePromptLogprobsOfGenerate) {
  TestDaemon daemon;
  const v1::ScoreResponse score = Score(daemon.stub(), TokenPrompt(200));
  ASSERT_EQ(score.logprobs_size(), 199);
  double sum = 0;
  for (const float logprob : score.logprobs()) sum -= logprob;
  EXPECT_NEAR(score.mean_nll(), sum / 199, 1e-9);
  EXPECT_GT(score.mean_nll(), 0);
  v1::GenerateRequest generate = GenerateOf(TokenPrompt(200), 1);
  generate.set_prompt_logprobs(true);
  const Generated out = Generate(daemon.stub(), generate);
  EXPECT_THAT(out.events.back().done().prompt_logprobs(), ElementsAreArray(score.logprobs()));
  EXPECT_TRUE(daemon.BecomesIdle());
}

// Over the wire: each document scores as it does alone, and what is generated continues the last.
TEST(DocumentsTest, ScoreAndContinueAsTheyDoAlone) {
  TestDaemon daemon({"ranks.count=3", "prefill.chunk_tokens=64"});
  const uint32_t starts[] = {0, 37, 38, 130};
  const v1::Prompt packed = [&] {
    v1::Prompt prompt = TokenPrompt(200);
    for (const uint32_t start : starts) prompt.add_document_starts(start);
    return prompt;
  }();
  const v1::ScoreResponse together = Score(daemon.stub(), packed);
  ASSERT_EQ(together.logprobs_size(), 199);
  double sum = 0;
  v1::Prompt last;
  for (size_t d = 0; d < std::size(starts); ++d) {
    const int begin = static_cast<int>(starts[d]);
    const int end = d + 1 < std::size(starts) ? static_cast<int>(starts[d + 1]) : 200;
    last.Clear();
    for (int i = begin; i < end; ++i) {
      last.mutable_token_ids()->add_ids(packed.token_ids().ids(i));
    }
    const v1::ScoreResponse alone = Score(daemon.stub(), last);
    ASSERT_EQ(alone.logprobs_size(), end - begin - 1);
    for (int i = 0; i < alone.logprobs_size(); ++i) {
      EXPECT_NEAR(together.logprobs(begin + i), alone.logprobs(i), 1e-3) << begin + i;
    }
    if (begin > 0) {
      EXPECT_EQ(together.logprobs(begin - 1), 0);
    }
    sum += alone.mean_nll() * alone.logprobs_size();
  }
  EXPECT_NEAR(together.mean_nll(), sum / 196, 1e-3);

  EXPECT_EQ(Generate(daemon.stub(), GenerateOf(packed, 8)).tokens,
            Generate(daemon.stub(), GenerateOf(last, 8)).tokens);
  v1::Prompt bad = packed;
  bad.add_document_starts(200);
  const Generated refused = Generate(daemon.stub(), GenerateOf(bad, 8));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("document_starts[4] is 200"));
  EXPECT_TRUE(daemon.BecomesIdle());
}

TEST(TokenizeTest, GoesThereAndBack) {
  TestDaemon daemon;
  const std::string text = "one two \xC3\xA4\xE2\x82\xAC <|im_end|>";
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text(text);
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().Tokenize(&context, request, &tokens).ok());
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse answer;
  grpc::ClientContext back_context;
  ASSERT_TRUE(daemon.stub().Detokenize(&back_context, back, &answer).ok());
  EXPECT_EQ(answer.text(), text);
}

// The template's bos_token is the model's own BOS.
TEST(TokenizeTest, ChatBeginsWithTheModelsBos) {
  TinyModelOptions options;
  options.context_length = kTinyContext;
  options.chat_template =
      "{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}";
  TestDaemon daemon({"model.path=" + WriteTinyModel(options)});
  v1::TokenizeRequest request;
  v1::ChatMessage& message = *request.mutable_prompt()->mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("x");
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().Tokenize(&context, request, &response).ok());
  ASSERT_GT(response.token_ids_size(), 2);
  EXPECT_EQ(response.token_ids(0), static_cast<uint32_t>(kTinyImStart));  // the BOS of this model
  EXPECT_EQ(response.token_ids(1), static_cast<uint32_t>(kTinyImStart));
}

TEST(TokenizeTest, DetokenizeChecksIdsAndMendsUtf8) {
  TestDaemon daemon;
  v1::DetokenizeRequest request;
  v1::DetokenizeResponse answer;
  for (const int byte : {0x61, 0xE2, 0x82}) request.add_token_ids(kTinySpecialTokens + byte);
  grpc::ClientContext mended;
  ASSERT_TRUE(daemon.stub().Detokenize(&mended, request, &answer).ok());
  EXPECT_EQ(answer.text(), "a\xEF\xBF\xBD");
  request.add_token_ids(100000);
  grpc::ClientContext refused;
  const grpc::Status status = daemon.stub().Detokenize(&refused, request, &answer);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("token_ids[3] is 100000"));
}

// Such a text is read in the conversion queue.
TEST(TokenizeTest, LongTextsAreReadAside) {
  TestDaemon daemon;
  std::string text;
  while (text.size() < (1 << 20)) text += "words and more words, ";
  v1::TokenizeRequest request;
  request.mutable_prompt()->set_text(text);
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().Tokenize(&context, request, &tokens).ok());
  EXPECT_GT(tokens.token_ids_size(), 100000);
  const Generated out = Generate(daemon.stub(), GenerateOf(request.prompt(), 1));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::Prompt fits;
  fits.set_parse_special(true);
  std::string specials;
  for (int i = 0; i < 5100; ++i) specials += "<|endoftext|>";
  ASSERT_GT(specials.size(), kInlineMessageBytes);
  fits.set_text(specials);
  const Generated read = Generate(daemon.stub(), GenerateOf(fits, 1));
  ASSERT_TRUE(read.status.ok()) << read.status.error_message();
  EXPECT_EQ(read.events.front().accepted().prompt_tokens(), 5100u);
  EXPECT_TRUE(daemon.BecomesIdle());
}

TEST(StatusTest, DescribesModelAndEngine) {
  TestDaemon daemon;
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ASSERT_TRUE(daemon.stub().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.architecture(), "llama");
  EXPECT_EQ(model.layers(), 2u);
  EXPECT_EQ(model.kv_heads(), 2u);
  EXPECT_EQ(model.vocab(), 384u);
  EXPECT_EQ(model.max_context_tokens(), static_cast<uint64_t>(kTinyContext));
  EXPECT_EQ(model.chat_family(), "chatml");
  EXPECT_EQ(model.eos_token_id(), static_cast<uint32_t>(kTinyImEnd));
  const v1::GetStatusResponse status = daemon.Status();
  EXPECT_EQ(status.version(), Version());
  EXPECT_TRUE(status.ring_formed());
  EXPECT_EQ(status.ranks_size(), 2);
  EXPECT_EQ(status.configured_ranks(), 2u);
  EXPECT_EQ(status.compute_dtype(), "f32");
  EXPECT_NE(status.attention_kernel(), "");
  EXPECT_GT(status.kv_tokens(), static_cast<uint64_t>(kTinyContext));
  EXPECT_FALSE(status.draining());
  EXPECT_EQ(status.epoch(), 1u);
  EXPECT_EQ(status.slots(), 8u);
  EXPECT_EQ(status.ranks(0).slots() + status.ranks(1).slots(), 8u);
  EXPECT_EQ(status.numerics(), "fast");
  EXPECT_EQ(status.layout(), "snake");
  EXPECT_EQ(status.transport(), "threads");
}

TEST(StatusTest, CountsHowPromptsWereComputed) {
  TestDaemon daemon({"ring.mode=home", "ring.strategy=pass-q"});
  ASSERT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(1000), 3)).status.ok());
  const v1::GetStatusResponse status = daemon.Status();
  for (const v1::TokenShare& mode : status.modes()) {
    EXPECT_EQ(mode.tokens(), mode.name() == "home" ? 1000u : 0u) << mode.name();
  }
  for (const v1::TokenShare& strategy : status.strategies()) {
    EXPECT_EQ(strategy.tokens(), strategy.name() == "pass-q" ? 1000u : 0u) << strategy.name();
  }
  EXPECT_GE(status.imbalance(), 1);
  EXPECT_LT(status.imbalance(), 1.5);
  for (const v1::RankStatus& rank : status.ranks()) {
    EXPECT_GT(rank.ring_bytes(), 0u);
    EXPECT_GT(rank.transfer_s(), 0);
    EXPECT_LE(rank.hidden_s(), rank.transfer_s());
  }
}

TEST(StatusTest, HealthAndReflectionAnswer) {
  TestDaemon daemon;
  EXPECT_EQ(HealthOf(daemon.channel(), ""), "SERVING");
  EXPECT_EQ(HealthOf(daemon.channel(), "ringfill.v1.Ringfill"), "SERVING");
  EXPECT_EQ(HealthOf(daemon.channel(), "no.such.Service"),
            std::to_string(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(ReflectedServices(daemon.channel()), HasSubstr("ringfill.v1.Ringfill"));
}

TEST(StatusTest, TwoDaemonsInOneProcessDoNotMix) {
  TestDaemon a, b({"ranks.count=3"});
  ASSERT_TRUE(Generate(a.stub(), GenerateOf(TokenPrompt(100), 4)).status.ok());
  EXPECT_EQ(a.Status().ranks_size(), 2);
  EXPECT_EQ(b.Status().ranks_size(), 3);
  EXPECT_EQ(b.Status().steps(), 0u);
  EXPECT_EQ(b.Metric("ringfill_requests_total", "rpc=\"Generate\""), 0);
}

TEST(StartTest, AddressesInUseAreNamed) {
  TestDaemon daemon;
  const auto error_of = [](const std::string& setting) {
    const auto second = Daemon::Start(TestConfig({setting}));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument) << setting;
    return std::string(second.status().message());
  };
  EXPECT_THAT(error_of("server.listen=" + daemon.daemon().grpc_address()),
              HasSubstr("server.listen: cannot listen on " + daemon.daemon().grpc_address()));
  EXPECT_THAT(error_of("metrics.listen=" + daemon.daemon().metrics_address()),
              HasSubstr("metrics.listen: cannot listen on " + daemon.daemon().metrics_address()));
  EXPECT_THAT(error_of("server.listen=203.0.113.7:1"), HasSubstr("server.listen"));
}

TEST(StartTest, MetricsCanBeSwitchedOff) {
  TestDaemon daemon({"metrics.listen="});
  EXPECT_EQ(daemon.daemon().metrics_address(), "");
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(5), 1)).status.ok());
}

TEST(StartTest, WarnsOfWhatMayNotBeMeant) {
  ModelConfig model;
  model.trained_context = 1000;
  EXPECT_TRUE(ConfigWarnings(TestConfig(), model).empty());
  EXPECT_THAT(ConfigWarnings(TestConfig({"model.max_context_tokens=1000"}), model),
              testing::IsEmpty());
  EXPECT_THAT(ConfigWarnings(TestConfig({"model.max_context_tokens=1001"}), model),
              ElementsAre(HasSubstr("trained for 1000")));
  EXPECT_THAT(ConfigWarnings(TestConfig({"server.listen=0.0.0.0:1"}), model),
              ElementsAre(HasSubstr("no authentication")));
  EXPECT_THAT(ConfigWarnings(TestConfig({"compute.dtype=bf16", "compute.isa=baseline"}), model),
              ElementsAre(HasSubstr("compute.dtype is bf16")));
  EXPECT_EQ(ConfigWarnings(TestConfig({"compute.dtype=bf16"}), model).empty(),
            DetectCpuIsa() == CpuIsa::kAvx512Bf16);
}

TEST(ReadinessTest, FollowsProgressAge) {
  std::vector<bool> published;
  Readiness readiness(10, [&](bool ready) { published.push_back(ready); });
  for (const double age : {0.0, 9.0, 11.0, 30.0, 0.5, 12.0}) readiness.Update(age);
  EXPECT_THAT(published, ElementsAre(false, true, false));
}

}  // namespace
}  // namespace ringfill
