#include "engine/request/generation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

constexpr Duration kProgressInterval = std::chrono::milliseconds(100);

double Between(std::optional<Instant> from, std::optional<Instant> to) {
  return from.has_value() && to.has_value() ? Milliseconds(*to - *from) : 0.0;
}

}  // namespace

Generation::Generation(Request request, int64_t max_tokens, std::shared_ptr<Outbox> outbox,
                       const Tokenizer& tokenizer, Instant submitted)
    : request_(std::move(request)),
      max_tokens_(max_tokens),
      outbox_(std::move(outbox)),
      submitted_(submitted),
      stop_ids_(request_.stop.stop_ids),
      detokenizer_(tokenizer),
      stops_(request_.stop.stop_strings) {
  if (!request_.stop.ignore_eos) {
    stop_ids_.insert(stop_ids_.end(), tokenizer.stop_ids().begin(), tokenizer.stop_ids().end());
  }
  if (request_.prompt_logprobs || request_.kind == RequestKind::kScore) {
    prompt_logprobs_.resize(request_.prompt.size() - 1);
  }
}

bool Generation::NoteStarted(Instant now) {
  if (started_.has_value()) return false;
  started_ = now;
  return true;
}

double Generation::queue_s() const { return Between(submitted_, started_) / 1e3; }
double Generation::prefill_s() const { return Between(started_, prefilled_) / 1e3; }
double Generation::decode_s() const { return Between(first_token_, last_token_) / 1e3; }

void Generation::NoteProgress(double processed, double attention_share, Instant now) {
  if (last_progress_.has_value() && now - *last_progress_ < kProgressInterval) return;
  last_progress_ = now;
  // Filling holes works on earlier tokens again.
  processed = most_processed_ = std::max(processed, most_processed_);
  const auto total = static_cast<double>(request_.prompt.size());
  const double elapsed = started_.has_value() ? Seconds(now - *started_) : 0.0;
  // Cost of the first n tokens: products are linear.
  auto cost = [&](double n) { return n + attention_share * CausalPairs(n); };
  ProgressEvent event;
  event.processed_tokens = static_cast<int64_t>(processed);
  event.total_tokens = static_cast<int64_t>(request_.prompt.size());
  event.elapsed_s = elapsed;
  event.tokens_per_s = elapsed > 0 ? processed / elapsed : 0;
  if (processed > 0) event.eta_s = elapsed * (cost(total) - cost(processed)) / cost(processed);
  outbox_->Push(event);
}

void Generation::NotePrefilled(Instant now) {
  prefilled_ = now;
  last_progress_.reset();
  NoteProgress(static_cast<double>(request_.prompt.size()), 0, now);
}

void Generation::AddShare(int rank, double busy_ms, double wait_ms) {
  for (int r = static_cast<int>(shares_.size()); r <= rank; ++r) {
    shares_.emplace_back();
    shares_.back().rank = r;
  }
  shares_[static_cast<size_t>(rank)].busy_ms += busy_ms;
  shares_[static_cast<size_t>(rank)].wait_ms += wait_ms;
}

void Generation::AddScore(int rank, int64_t position, float logprob) {
  if (!std::isfinite(logprob)) {
    failure_ = absl::DataLossError(absl::StrCat("the log-probability after prompt token ", position,
                                                ", computed on rank ", rank, ", is not finite"));
  }
  if (static_cast<size_t>(position) >= prompt_logprobs_.size()) {
    failure_ = absl::DataLossError(
        absl::StrCat("rank ", rank, " scored position ", position, ", which has no next token"));
    return;
  }
  // What another document says of a document's first token is no prediction.
  prompt_logprobs_[static_cast<size_t>(position)] = BeginsDocument(position + 1) ? 0.0f : logprob;
}

bool Generation::BeginsDocument(int64_t position) const {
  return std::binary_search(request_.document_starts.begin(), request_.document_starts.end(),
                            position);
}

// Half of a square for each document.
double Generation::CausalPairs(double n) const {
  double pairs = 0;
  double begin = 0;
  for (const int64_t start : request_.document_starts) {
    const double end = std::min(n, static_cast<double>(start));
    pairs += (end - begin) * (end - begin) / 2;
    begin = end;
  }
  return pairs + (n - begin) * (n - begin) / 2;
}

bool Generation::IsStopId(TokenId id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

absl::StatusOr<std::optional<TokenId>> Generation::Step(std::span<const float> logits,
                                                        Instant now) {
  const bool may_stop = generated_ >= request_.stop.min_tokens;
  RF_ASSIGN_OR_RETURN(
      Sampled sampled,
      Sample(logits, request_.sampling, generated_, request_.logprobs,
             may_stop ? std::span<const TokenId>() : std::span<const TokenId>(stop_ids_)));
  if (!first_token_.has_value()) first_token_ = now;
  last_token_ = now;
  if (may_stop && IsStopId(sampled.id)) {
    finish_reason_ = FinishReason::kStop;
    return std::optional<TokenId>();
  }
  ++generated_;
  TokenEvent event;
  event.id = sampled.id;
  if (request_.logprobs >= 0) {
    event.has_logprob = true;
    event.logprob = sampled.logprob;
    event.top = std::move(sampled.top);
  }
  std::string text = detokenizer_.Push(sampled.id);
  if (may_stop) {
    StopMatcher::Result result = stops_.Push(text);
    event.text = std::move(result.text);
    matched_stop_ = std::move(result.stop);
    outbox_->Push(std::move(event));
    if (result.matched) {
      finish_reason_ = FinishReason::kStop;
      return std::optional<TokenId>();
    }
  } else {
    event.text = std::move(text);
    outbox_->Push(std::move(event));
  }
  if (generated_ == max_tokens_) {
    finish_reason_ = FinishReason::kLength;
    return std::optional<TokenId>();
  }
  return std::optional<TokenId>(sampled.id);
}

void Generation::Finish(const std::vector<int64_t>& pages) {
  DoneEvent done;
  if (matched_stop_.empty()) {
    StopMatcher::Result result = stops_.Push(detokenizer_.Flush());
    done.text = std::move(result.text);
    if (result.matched) {
      finish_reason_ = FinishReason::kStop;
      matched_stop_ = std::move(result.stop);
    } else {
      done.text += stops_.Flush();
    }
  }
  done.finish_reason = finish_reason_;
  done.matched_stop = matched_stop_;
  done.usage = {static_cast<int64_t>(request_.prompt.size()), 0, generated_};
  done.timings = {Between(submitted_, started_), Between(started_, prefilled_),
                  Between(submitted_, first_token_), Between(first_token_, last_token_)};
  for (size_t r = 0; r < pages.size(); ++r) {
    AddShare(static_cast<int>(r), 0, 0);
    shares_[r].kv_pages = pages[r];
  }
  done.ranks = shares_;
  done.prompt_logprobs = std::move(prompt_logprobs_);
  if (!done.prompt_logprobs.empty()) {
    // A start at 0 is that of the first token, which has no entry.
    const auto& starts = request_.document_starts;
    const bool first = !starts.empty() && starts.front() == 0;
    done.predictions = static_cast<int64_t>(done.prompt_logprobs.size() + (first ? 1 : 0)) -
                       static_cast<int64_t>(starts.size());
  }
  outbox_->Push(std::move(done));
}

void Generation::Fail(absl::Status status) { outbox_->Push(FailedEvent{std::move(status)}); }

}  // namespace ringfill
