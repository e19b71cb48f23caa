// A request as the engine sees it: token ids in, options checked by ValidateRequest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model/tokenizer.h"

namespace ringfill {

// Named bounds of a request; more is INVALID_ARGUMENT.
inline constexpr int kMaxLogprobs = 64;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr size_t kMaxStopIds = 256;
inline constexpr size_t kMaxDocuments = 65536;

struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  uint64_t seed = 0;         // same seed, same prompt, same options: same tokens
};

struct StopOptions {
  int max_tokens = 256;
  int min_tokens = 0;       // stop ids and strings are not looked at before
  bool ignore_eos = false;  // the model's own stop ids do not end the request
  std::vector<TokenId> stop_ids;
  std::vector<std::string> stop_strings;
};

enum class RequestKind {
  kGenerate,
  kScore,  // log-likelihoods of the prompt's tokens; generates nothing
};

struct Request {
  std::string id;  // for logs; made by the caller, need not be unique
  // The caller's place in its trace (W3C "traceparent"), for logs and the timeline; empty: none.
  std::string traceparent;
  RequestKind kind = RequestKind::kGenerate;
  std::vector<TokenId> prompt;
  // Where documents begin: positions of the prompt, ascending. A token sees those before it in its
  // own document alone; generated ones continue the last. Tokens before the first of these
  // positions, all when there is none, are one more document. Positions run on through the prompt.
  std::vector<int64_t> document_starts;
  SamplingOptions sampling;
  StopOptions stop;
  int logprobs = -1;  // top-k of each generated token, 0 to kMaxLogprobs; -1: none
  bool prompt_logprobs = false;
  std::optional<Instant> deadline;
};

// What a request is checked against.
struct RequestLimits {
  int64_t vocab = 0;
  int64_t max_context_tokens = 0;  // prompt plus generated
};

// INVALID_ARGUMENT with the field, the value and the limit. Looks at every id once.
absl::Status ValidateRequest(const Request& request, const RequestLimits& limits);

}  // namespace ringfill
