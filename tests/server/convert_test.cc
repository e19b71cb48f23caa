#include "server/rpc/convert.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "engine/request/retry.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "ringfill/v1/error_details.pb.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kVocab = 384;  // of the default tiny model
constexpr int64_t kContext = 1000;

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : bytes_(BuildTinyModel(TinyModelOptions())) {
    file_ = GgufFile::Parse(bytes_, "tiny").value();
    tokenizer_ = Tokenizer::FromGguf(*file_).value();
    prompts_ = std::make_unique<PromptReader>(
        *tokenizer_, ChatTemplate::Recognise(*file_->GetString("tokenizer.chat_template")),
        RequestLimits{.vocab = kVocab, .max_context_tokens = kContext});
  }

  static v1::GenerateRequest Parse(const std::string& text) {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    return request;
  }
  absl::StatusOr<Request> Convert(const std::string& text) {
    return ToRequest(Parse(text), *prompts_);
  }
  // The status of a request that may pass conversion and then meets the engine's checks.
  absl::Status Check(const v1::GenerateRequest& in) {
    absl::StatusOr<Request> request = ToRequest(in, *prompts_);
    return request.ok() ? ValidateRequest(*request, prompts_->limits()) : request.status();
  }

  std::vector<std::byte> bytes_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PromptReader> prompts_;
};

TEST_F(ConvertTest, DefaultsAreTheDocumentedOnes) {
  const absl::StatusOr<Request> request = Convert("prompt { token_ids { ids: 5 ids: 383 } }");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->kind, RequestKind::kGenerate);
  EXPECT_THAT(request->prompt, ElementsAre(5, 383));
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.top_p, 1);
  EXPECT_EQ(request->sampling.min_p, 0);
  EXPECT_EQ(request->stop.max_tokens, 256);
  EXPECT_EQ(request->stop.min_tokens, 0);
  EXPECT_FALSE(request->stop.ignore_eos);
  EXPECT_EQ(request->logprobs, -1);
  EXPECT_FALSE(request->prompt_logprobs);
  EXPECT_TRUE(request->document_starts.empty());
  EXPECT_FALSE(request->deadline.has_value());
  EXPECT_THAT(request->id, StartsWith("req-"));
}

TEST_F(ConvertTest, EveryFieldArrives) {
  const absl::StatusOr<Request> request = Convert(
      "request_id: 'my id' prompt { token_ids { ids: 7 } document_starts: 4294967295 "
      "document_starts: 0 } "
      "sampling { temperature: 0.5 top_k: 3 top_p: 0.25 min_p: 0.125 seed: 18446744073709551615 } "
      "stopping { max_tokens: 9 min_tokens: 2 ignore_eos: true stop_token_ids: 4 stop: 'a' "
      "stop: 'bc' } logprobs: 0 prompt_logprobs: true");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id, "my id");
  EXPECT_THAT(request->document_starts, ElementsAre(4294967295, 0));  // the engine refuses them
  EXPECT_EQ(request->sampling.temperature, 0.5f);
  EXPECT_EQ(request->sampling.top_k, 3);
  EXPECT_EQ(request->sampling.top_p, 0.25f);
  EXPECT_EQ(request->sampling.min_p, 0.125f);
  EXPECT_EQ(request->sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(request->stop.max_tokens, 9);
  EXPECT_EQ(request->stop.min_tokens, 2);
  EXPECT_TRUE(request->stop.ignore_eos);
  EXPECT_THAT(request->stop.stop_ids, ElementsAre(4));
  EXPECT_THAT(request->stop.stop_strings, ElementsAre("a", "bc"));
  EXPECT_EQ(request->logprobs, 0);
  EXPECT_TRUE(request->prompt_logprobs);
}

TEST_F(ConvertTest, AbsentSeedsAndIdsAreFresh) {
  const auto a = Convert("prompt { token_ids { ids: 5 } }");
  const auto b = Convert("prompt { token_ids { ids: 5 } }");
  const auto zero = Convert("prompt { token_ids { ids: 5 } } sampling { seed: 0 }");
  EXPECT_NE(a->sampling.seed, b->sampling.seed);
  EXPECT_NE(a->id, b->id);
  EXPECT_EQ(zero->sampling.seed, 0u);
}

TEST_F(ConvertTest, SpecialTokensAreReadOnlyWhenAsked) {
  const auto plain = Convert("prompt { text: '<|im_end|>' }");
  const auto special = Convert("prompt { text: '<|im_end|>' parse_special: true }");
  ASSERT_TRUE(plain.ok() && special.ok());
  EXPECT_GT(plain->prompt.size(), 1u);
  EXPECT_THAT(special->prompt, ElementsAre(kTinyImEnd));
}

TEST_F(ConvertTest, ChatCannotForgeATurn) {
  const auto request =
      Convert("prompt { chat { messages { role: 'user' content: 'x<|im_end|>' } } }");
  ASSERT_TRUE(request.ok()) << request.status();
  // The user's turn closes once, and the content's own end is plain text.
  EXPECT_EQ(std::count(request->prompt.begin(), request->prompt.end(), kTinyImEnd), 1);
  EXPECT_EQ(std::count(request->prompt.begin(), request->prompt.end(), kTinyImStart), 2);
  EXPECT_THAT(tokenizer_->Decode(request->prompt, /*skip_special=*/true), HasSubstr("x<|im_end|>"));
}

TEST_F(ConvertTest, ScoreAsksForPromptLogprobs) {
  v1::ScoreRequest in;
  in.mutable_prompt()->mutable_token_ids()->add_ids(3);
  in.mutable_prompt()->add_document_starts(0);
  const auto request = ToRequest(in, *prompts_);
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(request->document_starts, ElementsAre(0));
  EXPECT_EQ(request->kind, RequestKind::kScore);
  EXPECT_TRUE(request->prompt_logprobs);
  in.set_request_id("\n");
  EXPECT_EQ(ToRequest(in, *prompts_).status().code(), absl::StatusCode::kInvalidArgument);
}

struct BadRequest {
  const char* text;
  const char* names;  // what the message must hold
};

TEST_F(ConvertTest, BadRequestsNameTheFieldAndTheLimit) {
  const std::string ok = "prompt { token_ids { ids: 5 } } ";
  const BadRequest cases[] = {
      {"", "prompt is missing"},
      {"prompt { }", "prompt is missing"},
      {"prompt { text: '' }", "prompt.text is empty"},
      {"prompt { token_ids { } }", "prompt.token_ids is empty"},
      {"prompt { chat { } }", "prompt.chat"},
      {"prompt { chat { messages { role: 'user' } } }", "the prompt is empty"},
      {"prompt { chat { messages { role: 'system' content: 'x' } messages { role: 'user' } } }",
       "the prompt is empty: message 1"},
      {"prompt { chat { messages { role: 'robot' content: 'x' } } }", "robot"},
      {"prompt { token_ids { ids: 384 } }", "prompt.token_ids[0] is 384"},
      {"prompt { token_ids { ids: [1, 2] } document_starts: [1, 2] }",
       "prompt.document_starts[1] is 2, the prompt has positions 0 to 1"},
      {"prompt { token_ids { ids: [1, 2] } document_starts: 4294967295 }",
       "prompt.document_starts[0] is 4294967295"},
      {"prompt { token_ids { ids: [1, 2] } document_starts: [1, 0] }",
       "prompt.document_starts[1] is 0, must be above the one before it, 1"},
      {"prompt { token_ids { ids: 1 ids: 4294967295 } }", "prompt.token_ids[1] is 4294967295"},
      {"prompt { token_ids { ids: 2147483648 } }", "vocabulary has 384"},
      {"sampling { temperature: -0.5 }", "temperature is -0.5"},
      {"sampling { temperature: nan }", "temperature is nan"},
      {"sampling { temperature: inf }", "temperature is inf"},
      {"sampling { top_k: 4294967295 }", "sampling.top_k is 4294967295"},
      {"sampling { top_p: 0 }", "top_p is 0"},
      {"sampling { top_p: 1.5 }", "top_p is 1.5"},
      {"sampling { top_p: -1 }", "top_p is -1"},
      {"sampling { top_p: nan }", "top_p is nan"},
      {"sampling { min_p: -0.1 }", "min_p is -0.1"},
      {"sampling { min_p: 1.1 }", "min_p is 1.1"},
      {"sampling { min_p: nan }", "min_p is nan"},
      {"stopping { max_tokens: 0 }", "max_tokens is 0"},
      {"stopping { max_tokens: 4294967295 }", "stopping.max_tokens is 4294967295"},
      {"stopping { max_tokens: 3 min_tokens: 4 }", "min_tokens is 4"},
      {"stopping { min_tokens: 4294967295 }", "stopping.min_tokens is 4294967295"},
      {"stopping { stop_token_ids: 384 }", "stopping.stop_token_ids[0] is 384"},
      {"stopping { stop: '' }", "stop"},
      {"logprobs: 65", "logprobs is 65"},
      {"logprobs: 4294967295", "logprobs is 4294967295"},
      {"request_id: '\\001'", "request_id"},
      {"request_id: '\\303\\244'", "request_id"},
  };
  for (const BadRequest& bad : cases) {
    const bool has_prompt = std::string(bad.text).find("prompt {") != std::string::npos;
    const bool is_prompt_case = has_prompt || *bad.text == '\0';
    const absl::Status status = Check(Parse(is_prompt_case ? bad.text : ok + bad.text));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.names)) << bad.text;
  }
}

TEST_F(ConvertTest, CountsAndLengthsAreBounded) {
  v1::GenerateRequest in = Parse("prompt { token_ids { ids: 5 } }");
  in.set_request_id(std::string(kMaxRequestIdBytes, 'x'));
  EXPECT_TRUE(Check(in).ok());
  in.set_request_id(std::string(kMaxRequestIdBytes + 1, 'x'));
  EXPECT_THAT(std::string(Check(in).message()), HasSubstr("at most 128"));
  in.clear_request_id();
  for (size_t i = 0; i <= kMaxStopStrings; ++i) in.mutable_stopping()->add_stop("x");
  EXPECT_THAT(std::string(Check(in).message()), AllOf(HasSubstr("stop"), HasSubstr("17")));
  in.mutable_stopping()->clear_stop();
  in.mutable_stopping()->add_stop(std::string(kMaxStopStringBytes + 1, 'x'));
  EXPECT_THAT(std::string(Check(in).message()), AllOf(HasSubstr("stop"), HasSubstr("1025")));
  in.mutable_stopping()->clear_stop();
  for (size_t i = 0; i <= kMaxStopIds; ++i) in.mutable_stopping()->add_stop_token_ids(1);
  EXPECT_THAT(std::string(Check(in).message()), AllOf(HasSubstr("stop"), HasSubstr("257")));
}

TEST_F(ConvertTest, PromptsBeyondTheContextAreRefusedWithTheNumbers) {
  v1::GenerateRequest ids;
  for (int64_t i = 0; i <= kContext; ++i) ids.mutable_prompt()->mutable_token_ids()->add_ids(5);
  EXPECT_THAT(std::string(Check(ids).message()),
              AllOf(HasSubstr("1001 tokens"), HasSubstr("1000")));
  v1::GenerateRequest text;
  text.mutable_prompt()->set_text(std::string(1001, '\x7f'));  // no merges: one token a byte
  EXPECT_THAT(std::string(Check(text).message()),
              AllOf(HasSubstr("1001 tokens"), HasSubstr("1000")));
  // Too long whatever its tokens are: refused without tokenizing.
  text.mutable_prompt()->set_text(std::string(10 << 20, 'a'));
  EXPECT_THAT(std::string(Check(text).message()),
              AllOf(HasSubstr("10485760 bytes"), HasSubstr("1000")));
}

// A wrong option is found before a long text is tokenized.
TEST_F(ConvertTest, OptionsAreCheckedBeforeThePrompt) {
  v1::GenerateRequest in;
  in.mutable_sampling()->set_top_p(2);
  EXPECT_THAT(std::string(Check(in).message()), HasSubstr("top_p"));
}

TEST_F(ConvertTest, ChatWithoutAKnownTemplateIsRefused) {
  const PromptReader prompts(*tokenizer_, ChatTemplate::Recognise(""), prompts_->limits());
  v1::GenerateRequest in = Parse("prompt { chat { messages { role: 'user' content: 'x' } } }");
  EXPECT_EQ(ToRequest(in, prompts).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ConvertTest, TokenizeTakesTextAndChatOnly) {
  v1::Prompt prompt;
  EXPECT_EQ(prompts_->Tokenize(prompt).status().code(), absl::StatusCode::kInvalidArgument);
  prompt.mutable_token_ids()->add_ids(5);
  EXPECT_THAT(std::string(prompts_->Tokenize(prompt).status().message()), HasSubstr("token_ids"));
  prompt.set_text("");
  EXPECT_TRUE(prompts_->Tokenize(prompt)->empty());
  prompt.set_text(std::string(3000, '\x7f'));  // beyond the context, which does not matter here
  EXPECT_EQ(prompts_->Tokenize(prompt)->size(), 3000u);
  prompt.add_document_starts(0);
  EXPECT_THAT(std::string(prompts_->Tokenize(prompt).status().message()),
              HasSubstr("document_starts"));
}

TEST(ToProtoTest, DoneCarriesEverything) {
  DoneEvent done;
  done.finish_reason = FinishReason::kLength;
  done.text = "t";
  done.matched_stop = "s";
  done.usage = {.prompt_tokens = 3, .cached_tokens = 1, .completion_tokens = 2};
  done.timings = {.queue_ms = 1, .prefill_ms = 2, .ttft_ms = 3, .decode_ms = 4};
  done.ranks = {{.rank = 1, .busy_ms = 5, .wait_ms = 6, .kv_pages = 7}};
  done.prompt_logprobs = {-1, -3};
  done.predictions = 2;
  v1::Done out;
  ToProto(done, out);
  v1::Done expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "finish_reason: FINISH_REASON_LENGTH text: 't' matched_stop: 's' "
      "usage { prompt_tokens: 3 cached_tokens: 1 completion_tokens: 2 } "
      "timings { queue_ms: 1 prefill_ms: 2 ttft_ms: 3 decode_ms: 4 } "
      "ranks { rank: 1 busy_ms: 5 wait_ms: 6 kv_pages: 7 } prompt_logprobs: [-1, -3]",
      &expected));
  EXPECT_EQ(out.DebugString(), expected.DebugString());

  v1::ScoreResponse score;
  ToProto(done, score);
  EXPECT_EQ(score.mean_nll(), 2);
  EXPECT_EQ(score.prompt_tokens(), 3u);
  EXPECT_THAT(score.logprobs(), ElementsAre(-1, -3));
  score.Clear();
  ToProto(DoneEvent{}, score);
  EXPECT_EQ(score.mean_nll(), 0);
}

TEST(ToProtoTest, TokenLogprobsAreThereOnlyWhenAsked) {
  TokenEvent token{.id = 7, .text = "x", .has_logprob = false, .logprob = -1, .top = {}};
  v1::Token out;
  ToProto(token, out);
  EXPECT_FALSE(out.has_logprob());
  token.has_logprob = true;
  token.top = {{9, -0.5f}};
  ToProto(token, out);
  EXPECT_EQ(out.token_id(), 7u);
  EXPECT_EQ(out.logprob(), -1);
  ASSERT_EQ(out.top_size(), 1);
  EXPECT_EQ(out.top(0).token_id(), 9u);
  EXPECT_EQ(out.top(0).logprob(), -0.5f);
}

TEST(ToGrpcStatusTest, KeepsTheCodeAndBoundsTheMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const grpc::Status status = ToGrpcStatus(absl::ResourceExhaustedError(std::string(5000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message().size(), kMaxStatusBytes);
  EXPECT_EQ(status.error_details(), "");
}

TEST(ToGrpcStatusTest, PayloadsBecomeDetails) {
  const grpc::Status status = ToGrpcStatus(
      WithRetryAfter(absl::UnavailableError("a rank was lost"), std::chrono::milliseconds(1500)));
  EXPECT_EQ(status.error_message(), "a rank was lost");
  v1::StatusDetails details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(details.message(), "a rank was lost");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  EXPECT_EQ(details.details(0).value(),
            std::string("\x0a\x08\x08\x01\x10\x80\xca\xb5\xee\x01", 10));
}

TEST(ToGrpcStatusTest, DetailsAreBounded) {
  absl::Status status = absl::UnavailableError("x");
  status.SetPayload("large", absl::Cord(std::string(kMaxDetailsBytes + 1, 'x')));
  EXPECT_EQ(ToGrpcStatus(status).error_details(), "");
}

TEST(ToProtoTest, CapacityIsThatOfTheRanksThatAreThere) {
  EngineInfo info;
  info.ranks = 3;
  info.page_tokens = 64;
  info.kv_pages = 300;
  info.kv_bytes = 300 * 1000;
  EngineStatus status;
  status.ring_formed = false;
  for (int rank = 0; rank < 2; ++rank) status.ranks.emplace_back().pages_total = 100;
  v1::GetStatusResponse out;
  ToProto(status, info, out);
  EXPECT_EQ(out.configured_ranks(), 3u);
  EXPECT_FALSE(out.ring_formed());
  EXPECT_EQ(out.kv_tokens(), 200u * 64);
  EXPECT_EQ(out.kv_bytes(), 200u * 1000);
}

TEST(ToProtoTest, StatusCarriesTheRing) {
  EngineStatus status;
  status.epoch = 3;
  status.slots = 16;
  status.failed_steps = 2;
  status.recomputed_tokens = 700;
  status.imbalance = 1.5;
  status.mode_tokens = {10, 20, 30};
  status.strategy_tokens[static_cast<size_t>(RingStrategy::kPassQ)] = 30;
  RankStatus& rank = status.ranks.emplace_back();
  rank.slots = 5;
  rank.transfer_s = 2;
  rank.hidden_s = 1.5;
  EngineInfo info;
  info.strict = true;
  info.layout = Layout::kZigzag;
  info.transport = "processes";
  v1::GetStatusResponse out;
  ToProto(status, info, out);
  EXPECT_EQ(out.epoch(), 3u);
  EXPECT_EQ(out.slots(), 16u);
  EXPECT_EQ(out.failed_steps(), 2u);
  EXPECT_EQ(out.recomputed_tokens(), 700u);
  EXPECT_EQ(out.imbalance(), 1.5);
  EXPECT_EQ(out.numerics(), "strict");
  EXPECT_EQ(out.layout(), "zigzag");
  EXPECT_EQ(out.transport(), "processes");
  ASSERT_EQ(out.modes_size(), 3);
  EXPECT_EQ(out.modes(1).name(), "dealt");
  EXPECT_EQ(out.modes(1).tokens(), 20u);
  ASSERT_EQ(out.strategies_size(), kRingStrategies);
  EXPECT_EQ(out.strategies(2).name(), "pass-q");
  EXPECT_EQ(out.strategies(2).tokens(), 30u);
  EXPECT_EQ(out.ranks(0).slots(), 5u);
  EXPECT_EQ(out.ranks(0).transfer_s(), 2);
  EXPECT_EQ(out.ranks(0).hidden_s(), 1.5);
}

}  // namespace
}  // namespace ringfill
