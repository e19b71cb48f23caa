// The way out: events and states to messages.
#include "server/rpc/convert.h"

namespace ringfill {
namespace {

void SetUsage(const Usage& in, v1::Usage& out) {
  out.set_prompt_tokens(in.prompt_tokens);
  out.set_cached_tokens(in.cached_tokens);
  out.set_completion_tokens(in.completion_tokens);
}

void SetTimings(const Timings& in, v1::Timings& out) {
  out.set_queue_ms(in.queue_ms);
  out.set_prefill_ms(in.prefill_ms);
  out.set_ttft_ms(in.ttft_ms);
  out.set_decode_ms(in.decode_ms);
}

// What Done and ScoreResponse share.
template <typename Message>
void SetAccounts(const DoneEvent& in, Message& out) {
  SetUsage(in.usage, *out.mutable_usage());
  SetTimings(in.timings, *out.mutable_timings());
  for (const RankShare& share : in.ranks) {
    v1::RankShare& rank = *out.add_ranks();
    rank.set_rank(share.rank);
    rank.set_busy_ms(share.busy_ms);
    rank.set_wait_ms(share.wait_ms);
    rank.set_kv_pages(share.kv_pages);
  }
}

// Of the ranks that are there.
void SetCapacity(const EngineStatus& status, const EngineInfo& info, v1::GetStatusResponse& out) {
  int64_t pages = 0;
  for (const RankStatus& rank : status.ranks) pages += rank.pages_total;
  if (info.kv_pages > 0) out.set_kv_bytes(info.kv_bytes / info.kv_pages * pages);
  out.set_kv_tokens(pages * info.page_tokens);
}

v1::FinishReason ToProto(FinishReason reason) {
  return reason == FinishReason::kStop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
}

}  // namespace

void ToProto(const AcceptedEvent& in, const std::string& request_id, v1::Accepted& out) {
  out.set_request_id(request_id);
  out.set_prompt_tokens(in.prompt_tokens);
  out.set_cached_tokens(in.cached_tokens);
  out.set_queue_position(in.queue_position);
}

void ToProto(const ProgressEvent& in, v1::Progress& out) {
  out.set_processed_tokens(in.processed_tokens);
  out.set_total_tokens(in.total_tokens);
  out.set_elapsed_s(in.elapsed_s);
  out.set_tokens_per_s(in.tokens_per_s);
  out.set_eta_s(in.eta_s);
}

void ToProto(const TokenEvent& in, v1::Token& out) {
  out.set_token_id(in.id);
  out.set_text(in.text);
  if (!in.has_logprob) return;
  out.set_logprob(in.logprob);
  for (const TokenLogprob& top : in.top) {
    v1::TokenLogprob& entry = *out.add_top();
    entry.set_token_id(top.id);
    entry.set_logprob(top.logprob);
  }
}

void ToProto(const DoneEvent& in, v1::Done& out) {
  out.set_finish_reason(ToProto(in.finish_reason));
  out.set_text(in.text);
  out.set_matched_stop(in.matched_stop);
  SetAccounts(in, out);
  out.mutable_prompt_logprobs()->Add(in.prompt_logprobs.begin(), in.prompt_logprobs.end());
}

void ToProto(const DoneEvent& in, v1::ScoreResponse& out) {
  double sum = 0;
  for (const float logprob : in.prompt_logprobs) sum -= logprob;
  out.set_prompt_tokens(in.usage.prompt_tokens);
  if (in.predictions > 0) out.set_mean_nll(sum / static_cast<double>(in.predictions));
  out.mutable_logprobs()->Add(in.prompt_logprobs.begin(), in.prompt_logprobs.end());
  SetAccounts(in, out);
}

void ToProto(const EngineStatus& status, const EngineInfo& info, v1::GetStatusResponse& out) {
  out.set_draining(status.draining);
  out.set_queued(status.queued);
  out.set_running(status.running);
  out.set_steps(status.steps);
  out.set_epoch(status.epoch);
  out.set_seconds_since_progress(status.seconds_since_progress);
  out.set_compute_dtype(std::string(DTypeName(info.dtype)));
  out.set_kv_dtype(std::string(DTypeName(info.kv_dtype)));
  out.set_isa(info.isa);
  out.set_attention_kernel(info.attention_kernel);
  out.set_threads_per_rank(info.threads_per_rank);
  out.set_stripe_tokens(info.stripe_tokens);
  out.set_page_tokens(info.page_tokens);
  out.set_chunk_tokens(info.chunk_tokens);
  out.set_max_context_tokens(info.max_context_tokens);
  SetCapacity(status, info, out);
  out.set_ring_formed(status.ring_formed);
  out.set_configured_ranks(info.ranks);
  out.set_slots(status.slots);
  out.set_failed_steps(status.failed_steps);
  out.set_recomputed_tokens(status.recomputed_tokens);
  out.set_numerics(info.strict ? "strict" : "fast");
  out.set_layout(std::string(LayoutName(info.layout)));
  out.set_transport(info.transport);
  out.set_imbalance(status.imbalance);
  for (size_t i = 0; i < status.mode_tokens.size(); ++i) {
    v1::TokenShare& share = *out.add_modes();
    share.set_name(std::string(TokenModeName(static_cast<TokenMode>(i))));
    share.set_tokens(status.mode_tokens[i]);
  }
  for (size_t i = 0; i < status.strategy_tokens.size(); ++i) {
    v1::TokenShare& share = *out.add_strategies();
    share.set_name(std::string(RingStrategyName(static_cast<RingStrategy>(i))));
    share.set_tokens(status.strategy_tokens[i]);
  }
  for (const RankStatus& from : status.ranks) {
    v1::RankStatus& rank = *out.add_ranks();
    rank.set_rank(from.rank);
    rank.set_kv_pages_total(from.pages_total);
    rank.set_kv_pages_used(from.pages_used);
    rank.set_busy_s(from.busy_s);
    rank.set_wait_s(from.wait_s);
    rank.set_ring_bytes(static_cast<uint64_t>(from.ring_bytes));
    rank.set_slots(from.slots);
    rank.set_transfer_s(from.transfer_s);
    rank.set_hidden_s(from.hidden_s);
  }
}

void ToProto(const Model& model, const PromptReader& prompts, v1::GetModelResponse& out) {
  const ModelConfig& config = model.config();
  const Tokenizer& tokenizer = prompts.tokenizer();
  out.set_name(config.name);
  out.set_architecture(config.architecture);
  out.set_weights(model.weight_summary());
  out.set_layers(config.layers);
  out.set_width(config.width);
  out.set_heads(config.heads);
  out.set_kv_heads(config.kv_heads);
  out.set_head_dim(config.head_dim);
  out.set_vocab(config.vocab);
  out.set_trained_context_tokens(config.trained_context);
  out.set_max_context_tokens(prompts.limits().max_context_tokens);
  if (tokenizer.bos()) out.set_bos_token_id(*tokenizer.bos());
  if (tokenizer.eos()) out.set_eos_token_id(*tokenizer.eos());
  for (const TokenId id : tokenizer.stop_ids()) out.add_stop_token_ids(id);
  if (prompts.chat().ok()) {
    out.set_chat_family(std::string(ChatTemplate::FamilyName(prompts.chat()->family())));
  }
  out.set_pre_tokenizer(std::string(tokenizer.pre_tokenizer()));
}

}  // namespace ringfill
