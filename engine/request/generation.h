// The life of one running request on the engine's side: its text, its stops, its times. Knows
// tokens and events, not ranks or pages.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model/tokenizer.h"
#include "engine/request/event.h"
#include "engine/request/outbox.h"
#include "engine/request/request.h"
#include "engine/request/sampler.h"
#include "engine/request/stop_matcher.h"

namespace ringfill {

// Owned by the leader; not thread-safe, except NoteProgress, which one rank thread calls while a
// step runs.
class Generation {
 public:
  // `max_tokens`: the request's, cut to what the context holds.
  Generation(Request request, int64_t max_tokens, std::shared_ptr<Outbox> outbox,
             const Tokenizer& tokenizer, Instant submitted);

  const Request& request() const { return request_; }
  Outbox& outbox() const { return *outbox_; }
  int64_t max_tokens() const { return max_tokens_; }
  Instant submitted() const { return submitted_; }
  std::optional<Instant> first_token_at() const { return first_token_; }
  std::optional<Instant> last_token_at() const { return last_token_; }
  bool past_deadline(Instant now) const {
    return request_.deadline.has_value() && now >= *request_.deadline;
  }

  // The first step that carries it. False, and nothing changes, in later calls.
  bool NoteStarted(Instant now);
  // Prefill has reached `processed` tokens (fractions while a chunk's layers run). Tells the client
  // at most ten times a second. `attention_share`: cost of attending to one earlier token over the
  // cost of a token's products, from the model's geometry.
  void NoteProgress(double processed, double attention_share, Instant now);
  void NotePrefilled(Instant now);
  // A step with a part of the prompt failed; returns how many have.
  int NoteFailedStep() { return ++failed_steps_; }
  bool prefilled() const { return prefilled_.has_value(); }
  std::optional<Instant> started() const { return started_; }
  // Seconds of the phases that are over; 0 for others.
  double queue_s() const;
  double prefill_s() const;
  double decode_s() const;  // first token to last
  int64_t generated() const { return generated_; }
  FinishReason finish_reason() const { return finish_reason_; }  // after Finish
  void AddShare(int rank, double busy_ms, double wait_ms);
  // A log-probability that is not finite fails the request: see failure().
  void AddScore(int rank, int64_t position, float logprob);
  // Not OK when the request cannot go on; the leader ends it.
  const absl::Status& failure() const { return failure_; }

  // Samples from `logits` and tells the client. Returns the token when the request goes on, nothing
  // when it has finished (then Finish is due); DATA_LOSS for logits that are not finite.
  absl::StatusOr<std::optional<TokenId>> Step(std::span<const float> logits, Instant now);
  // Sends Done. `pages`: [ranks] KV pages it held.
  void Finish(const std::vector<int64_t>& pages);
  // Sends Failed.
  void Fail(absl::Status status);

  // Since when the outbox has been full, for the slow-client timeout; kept by the leader.
  std::optional<Instant> paused_since;

 private:
  bool IsStopId(TokenId id) const;
  bool BeginsDocument(int64_t position) const;
  // (token, visible token) pairs among the first `n` tokens of the prompt.
  double CausalPairs(double n) const;

  const Request request_;
  const int64_t max_tokens_;
  const std::shared_ptr<Outbox> outbox_;
  const Instant submitted_;
  std::vector<TokenId> stop_ids_;
  StreamingDetokenizer detokenizer_;
  StopMatcher stops_;

  int64_t generated_ = 0;
  FinishReason finish_reason_ = FinishReason::kStop;
  std::string tail_;
  std::string matched_stop_;
  double most_processed_ = 0;
  int failed_steps_ = 0;
  std::optional<Instant> started_, prefilled_, first_token_, last_token_, last_progress_;
  std::vector<RankShare> shares_;
  std::vector<float> prompt_logprobs_;
  absl::Status failure_;
};

}  // namespace ringfill
