// What a request's client gets to see, in order: Accepted, Progress*, Token*, then exactly one of
// Done or Failed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/model/tokenizer.h"

namespace ringfill {

struct AcceptedEvent {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t queue_position = 0;  // requests ahead of it
};

struct ProgressEvent {
  int64_t processed_tokens = 0;  // of the prompt, cached ones included
  int64_t total_tokens = 0;
  double elapsed_s = 0;  // since prefill started
  double tokens_per_s = 0;
  double eta_s = 0;  // until the prompt is done, from the linear and attention costs
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;  // natural
};

struct TokenEvent {
  TokenId id = 0;
  std::string
      text;  // newly complete text, valid UTF-8; empty while it may still become a stop string
  // With logprobs asked for: of the token itself, and the k most likely, descending.
  bool has_logprob = false;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

enum class FinishReason { kStop, kLength };
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length"

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

struct Timings {
  double queue_ms = 0;    // submit to first step
  double prefill_ms = 0;  // first step to end of prefill
  double ttft_ms = 0;     // submit to first token
  double decode_ms = 0;   // first token to last
};

// One rank's part in one request.
struct RankShare {
  int rank = 0;
  double busy_ms = 0;  // computing, in steps that carried this request
  double wait_ms = 0;  // waiting for peers, in those steps
  int64_t kv_pages = 0;
};

struct DoneEvent {
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;          // text that was held back and is not part of a stop string
  std::string matched_stop;  // the stop string that ended it, if one did
  Usage usage;
  Timings timings;
  std::vector<RankShare> ranks;
  // Prompt log-likelihoods when asked for: entry i is log p(prompt[i+1] | what it sees of
  // prompt[0..i]), natural; prompt_tokens - 1 of them. 0 where prompt[i+1] begins a document.
  std::vector<float> prompt_logprobs;
  int64_t predictions = 0;  // of those entries: all but the zeros at documents' beginnings
};

struct FailedEvent {
  absl::Status status;
};

using RequestEvent = std::variant<AcceptedEvent, ProgressEvent, TokenEvent, DoneEvent, FailedEvent>;

}  // namespace ringfill
