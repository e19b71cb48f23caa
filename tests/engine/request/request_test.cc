#include "engine/request/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/request/event.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

constexpr RequestLimits kLimits{.vocab = 1000, .max_context_tokens = 8192};

Request Good() {
  Request request;
  request.prompt = {1, 2, 999, 0};
  return request;
}

struct Case {
  const char* message;
  std::function<void(Request&)> change;
};

void ExpectRefused(const Case& c) {
  Request request = Good();
  c.change(request);
  const absl::Status status = ValidateRequest(request, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
  EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
}

void ExpectAccepted(const std::function<void(Request&)>& change) {
  Request request = Good();
  change(request);
  const absl::Status status = ValidateRequest(request, kLimits);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ValidateRequestTest, DocumentStarts) {
  const Case cases[] = {
      {"prompt.document_starts[0] is -1, the prompt has positions 0 to 3",
       [](Request& r) { r.document_starts = {-1}; }},
      {"prompt.document_starts[2] is 4, the prompt has positions 0 to 3",
       [](Request& r) {
         r.document_starts = {0, 2, 4};
       }},
      {"prompt.document_starts[1] is 2, must be above the one before it, 2",
       [](Request& r) {
         r.document_starts = {2, 2};
       }},
      {"prompt.document_starts[2] is 1, must be above the one before it, 3",
       [](Request& r) {
         r.document_starts = {0, 3, 1};
       }},
      {"prompt.document_starts has 65537 entries, at most 65536 are allowed",
       [](Request& r) {
         for (int64_t i = 0; i < 65537; ++i) r.document_starts.push_back(i);
       }},
  };
  for (const Case& c : cases) ExpectRefused(c);
  ExpectAccepted([](Request& r) { r.document_starts = {0}; });
  ExpectAccepted([](Request& r) { r.document_starts = {1, 2, 3}; });
}

TEST(ValidateRequestTest, SamplingValuesOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Case cases[] = {
      {"sampling.temperature is -0.5, must be from 0 to 100",
       [](Request& r) { r.sampling.temperature = -0.5f; }},
      {"sampling.temperature is 100.5", [](Request& r) { r.sampling.temperature = 100.5f; }},
      {"sampling.temperature is nan", [=](Request& r) { r.sampling.temperature = nan; }},
      {"sampling.temperature is inf", [=](Request& r) { r.sampling.temperature = infinity; }},
      {"sampling.temperature is -inf", [=](Request& r) { r.sampling.temperature = -infinity; }},
      {"sampling.top_k is -1, must be at least 0", [](Request& r) { r.sampling.top_k = -1; }},
      {"sampling.top_p is 0, must be above 0 and at most 1",
       [](Request& r) { r.sampling.top_p = 0; }},
      {"sampling.top_p is 1.5", [](Request& r) { r.sampling.top_p = 1.5f; }},
      {"sampling.top_p is -0.25", [](Request& r) { r.sampling.top_p = -0.25f; }},
      {"sampling.top_p is nan", [=](Request& r) { r.sampling.top_p = nan; }},
      {"sampling.min_p is -0.25, must be from 0 to 1",
       [](Request& r) { r.sampling.min_p = -0.25f; }},
      {"sampling.min_p is 1.5", [](Request& r) { r.sampling.min_p = 1.5f; }},
      {"sampling.min_p is nan", [=](Request& r) { r.sampling.min_p = nan; }},
      {"logprobs is 65, must be from 0 to 64", [](Request& r) { r.logprobs = 65; }},
      {"logprobs is -2", [](Request& r) { r.logprobs = -2; }},
  };
  for (const Case& c : cases) ExpectRefused(c);
}

TEST(ValidateRequestTest, SamplingLimitsThemselves) {
  ExpectAccepted([](Request&) {});
  ExpectAccepted([](Request& r) { r.sampling.temperature = 100; });
  ExpectAccepted([](Request& r) { r.sampling.top_k = std::numeric_limits<int>::max(); });
  ExpectAccepted([](Request& r) { r.sampling.top_p = std::numeric_limits<float>::denorm_min(); });
  ExpectAccepted([](Request& r) { r.sampling.min_p = 1; });
  ExpectAccepted([](Request& r) { r.logprobs = kMaxLogprobs; });
  ExpectAccepted([](Request& r) { r.logprobs = 0; });
}

TEST(ValidateRequestTest, StopOptions) {
  const Case cases[] = {
      {"stopping.max_tokens is 0, must be at least 1", [](Request& r) { r.stop.max_tokens = 0; }},
      {"stopping.max_tokens is -7", [](Request& r) { r.stop.max_tokens = -7; }},
      {"stopping.min_tokens is -1, must be at least 0", [](Request& r) { r.stop.min_tokens = -1; }},
      {"stopping.min_tokens is 11, must be at most max_tokens, 10",
       [](Request& r) {
         r.stop.max_tokens = 10;
         r.stop.min_tokens = 11;
       }},
      {"stopping.stop_token_ids[1] is 1000, the vocabulary has ids 0 to 999",
       [](Request& r) {
         r.stop.stop_ids = {5, 1000};
       }},
      {"stopping.stop_token_ids has 257 entries, at most 256 are allowed",
       [](Request& r) { r.stop.stop_ids.assign(257, 1); }},
      {"stopping.stop has 17 entries, at most 16 are allowed",
       [](Request& r) { r.stop.stop_strings.assign(17, "x"); }},
      {"stopping.stop[1] has 0 bytes, must be 1 to 1024",
       [](Request& r) {
         r.stop.stop_strings = {"a", ""};
       }},
      {"stopping.stop[0] has 1025 bytes, must be 1 to 1024",
       [](Request& r) { r.stop.stop_strings = {std::string(1025, 'a')}; }},
  };
  for (const Case& c : cases) ExpectRefused(c);
  ExpectAccepted([](Request& r) {
    r.stop.max_tokens = r.stop.min_tokens = 10;
    r.stop.stop_ids.assign(256, 999);
    r.stop.stop_strings.assign(16, std::string(1024, 'a'));
  });
}

TEST(ValidateRequestTest, PromptIds) {
  const Case cases[] = {
      {"prompt is empty", [](Request& r) { r.prompt.clear(); }},
      {"prompt[2] is 1000, the vocabulary has ids 0 to 999",
       [](Request& r) {
         r.prompt = {1, 2, 1000, 3};
       }},
      {"prompt[0] is -1, the vocabulary", [](Request& r) { r.prompt = {-1}; }},
      {"prompt[3] is 2147483647",
       [](Request& r) { r.prompt[3] = std::numeric_limits<TokenId>::max(); }},
  };
  for (const Case& c : cases) ExpectRefused(c);
}

TEST(ValidateRequestTest, PromptAgainstTheContext) {
  ExpectRefused({"prompt has 9000 tokens, the context holds 8192",
                 [](Request& r) { r.prompt.assign(9000, 1); }});
  ExpectRefused({"prompt has 8192 tokens, the context holds 8192",
                 [](Request& r) { r.prompt.assign(8192, 1); }});
  ExpectRefused({"prompt has 8193 tokens, the context holds 8192", [](Request& r) {
                   r.kind = RequestKind::kScore;
                   r.prompt.assign(8193, 1);
                 }});
  ExpectAccepted([](Request& r) { r.prompt.assign(8191, 1); });
  ExpectAccepted([](Request& r) {
    r.kind = RequestKind::kScore;
    r.prompt.assign(8192, 1);
  });
}

TEST(FinishReasonTest, Names) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
}

}  // namespace
}  // namespace ringfill
