#include "cli/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/progress.h"

namespace ringfill::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string FormatRate(double tokens, double ms) {
  if (tokens <= 0 || ms <= 0) return "";
  const double rate = tokens * 1e3 / ms;
  if (rate >= 1000) return absl::StrCat("  ", FormatCount(std::llround(rate)), " tok/s");
  return absl::StrFormat("  %.1f tok/s", rate);
}

std::string FormatMs(double ms) { return FormatSeconds(ms / 1e3); }

std::string FormatBytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

std::string FormatShare(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.0f %%", 100 * part / whole) : "-";
}

// "home 80 %, dealt 20 %": the largest first, without those that never happened.
std::string FormatShares(const google::protobuf::RepeatedPtrField<v1::TokenShare>& shares) {
  std::vector<const v1::TokenShare*> used;
  double all = 0;
  for (const v1::TokenShare& share : shares) {
    if (share.tokens() > 0) used.push_back(&share);
    all += static_cast<double>(share.tokens());
  }
  std::stable_sort(used.begin(), used.end(),
                   [](const auto* a, const auto* b) { return a->tokens() > b->tokens(); });
  std::string text;
  for (const v1::TokenShare* share : used) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", share->name(), " ",
                    FormatShare(static_cast<double>(share->tokens()), all));
  }
  return text;
}

Json SharesJson(const google::protobuf::RepeatedPtrField<v1::TokenShare>& shares) {
  Json json = Json::object();
  for (const v1::TokenShare& share : shares) json[share.name()] = share.tokens();
  return json;
}

// Columns as wide as their widest cell.
std::string AlignedRows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
    }
    absl::StrAppend(&text, line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  return text;
}

std::string RankRows(const v1::GetStatusResponse& status) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "slots", "KV pages used", "busy", "", "waited", "sent", "at", "hidden"}};
  for (const v1::RankStatus& rank : status.ranks()) {
    const auto sent = static_cast<double>(rank.ring_bytes());
    rows.push_back(
        {absl::StrCat(rank.rank()), absl::StrCat(rank.slots()),
         absl::StrCat(FormatCount(rank.kv_pages_used()), " of ",
                      FormatCount(rank.kv_pages_total())),
         FormatSeconds(rank.busy_s()), FormatShare(rank.busy_s(), rank.busy_s() + rank.wait_s()),
         FormatSeconds(rank.wait_s()), FormatBytes(sent),
         rank.transfer_s() > 0 ? absl::StrCat(FormatBytes(sent / rank.transfer_s()), "/s") : "-",
         FormatShare(rank.hidden_s(), rank.transfer_s())});
  }
  return AlignedRows(rows);
}

// 0 where nothing was measured.
double Ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

Json LogprobsJson(const std::vector<v1::Token>& tokens) {
  Json list = Json::array();
  for (const v1::Token& token : tokens) {
    Json top = Json::array();
    for (const v1::TokenLogprob& entry : token.top()) {
      top.push_back({{"token_id", entry.token_id()}, {"logprob", entry.logprob()}});
    }
    list.push_back(
        {{"token_id", token.token_id()}, {"logprob", token.logprob()}, {"top", std::move(top)}});
  }
  return list;
}

Json ModelJson(const v1::GetModelResponse& model) {
  Json json = {{"name", model.name()},
               {"architecture", model.architecture()},
               {"weights", model.weights()},
               {"layers", model.layers()},
               {"width", model.width()},
               {"heads", model.heads()},
               {"kv_heads", model.kv_heads()},
               {"head_dim", model.head_dim()},
               {"vocab", model.vocab()},
               {"trained_context_tokens", model.trained_context_tokens()},
               {"max_context_tokens", model.max_context_tokens()},
               {"chat_family", model.chat_family()},
               {"pre_tokenizer", model.pre_tokenizer()},
               {"stop_token_ids", Json(std::vector<uint32_t>(model.stop_token_ids().begin(),
                                                             model.stop_token_ids().end()))}};
  if (model.has_bos_token_id()) json["bos_token_id"] = model.bos_token_id();
  if (model.has_eos_token_id()) json["eos_token_id"] = model.eos_token_id();
  return json;
}

std::string RingText(const v1::GetStatusResponse& status) {
  if (!status.ring_formed()) {
    return absl::StrCat(
        "none is formed; configured: ", FormatNumbered(status.configured_ranks(), "rank"), " as ",
        status.transport());
  }
  const bool whole = static_cast<uint32_t>(status.ranks_size()) == status.configured_ranks();
  return absl::StrCat(whole ? "" : absl::StrCat(status.ranks_size(), " of "),
                      FormatNumbered(status.configured_ranks(), "rank"), " as ", status.transport(),
                      ", ", status.layout(), " over ", status.slots(), " slots, epoch ",
                      status.epoch());
}

}  // namespace

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "unspecified";
  }
}

Json GenerationJson(const Generation& generation, bool with_logprobs) {
  const v1::Done& done = generation.done;
  Json ids = Json::array();
  for (const v1::Token& token : generation.tokens) ids.push_back(token.token_id());
  Json ranks = Json::array();
  for (const v1::RankShare& rank : done.ranks()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"busy_ms", rank.busy_ms()},
                     {"wait_ms", rank.wait_ms()},
                     {"kv_pages", rank.kv_pages()}});
  }
  Json json = {{"text", generation.text},
               {"token_ids", std::move(ids)},
               {"finish_reason", FinishReasonName(done.finish_reason())},
               {"usage",
                {{"prompt_tokens", done.usage().prompt_tokens()},
                 {"cached_tokens", done.usage().cached_tokens()},
                 {"completion_tokens", done.usage().completion_tokens()}}},
               {"timings",
                {{"queue_ms", done.timings().queue_ms()},
                 {"prefill_ms", done.timings().prefill_ms()},
                 {"ttft_ms", done.timings().ttft_ms()},
                 {"decode_ms", done.timings().decode_ms()}}},
               {"ranks", std::move(ranks)}};
  if (with_logprobs) json["logprobs"] = LogprobsJson(generation.tokens);
  return json;
}

std::string StatsTable(const v1::Done& done) {
  const v1::Usage& usage = done.usage();
  const v1::Timings& timings = done.timings();
  const double prefilled =
      static_cast<double>(usage.prompt_tokens()) - static_cast<double>(usage.cached_tokens());
  // The first token belongs to prefill; decode makes the others.
  const double decoded = static_cast<double>(usage.completion_tokens()) - 1;
  std::string table;
  absl::StrAppendFormat(&table, "  %-12s %s prompt, %s cached, %s generated\n", "tokens",
                        FormatCount(usage.prompt_tokens()), FormatCount(usage.cached_tokens()),
                        FormatCount(usage.completion_tokens()));
  absl::StrAppendFormat(&table, "  %-12s %s\n", "queue", FormatMs(timings.queue_ms()));
  absl::StrAppendFormat(&table, "  %-12s %s%s\n", "prefill", FormatMs(timings.prefill_ms()),
                        FormatRate(prefilled, timings.prefill_ms()));
  absl::StrAppendFormat(&table, "  %-12s %s\n", "first token", FormatMs(timings.ttft_ms()));
  absl::StrAppendFormat(&table, "  %-12s %s%s\n", "decode", FormatMs(timings.decode_ms()),
                        FormatRate(decoded, timings.decode_ms()));
  for (const v1::RankShare& rank : done.ranks()) {
    const double all = rank.busy_ms() + rank.wait_ms();
    absl::StrAppendFormat(&table, "  %-12s busy %s (%.0f %%), wait %s, %s\n",
                          absl::StrCat("rank ", rank.rank()), FormatMs(rank.busy_ms()),
                          all > 0 ? 100 * rank.busy_ms() / all : 0.0, FormatMs(rank.wait_ms()),
                          FormatNumbered(rank.kv_pages(), "KV page"));
  }
  return table;
}

Json StatusJson(const v1::GetStatusResponse& status, const v1::GetModelResponse& model) {
  Json ranks = Json::array();
  for (const v1::RankStatus& rank : status.ranks()) {
    ranks.push_back(
        {{"rank", rank.rank()},
         {"kv_pages_total", rank.kv_pages_total()},
         {"kv_pages_used", rank.kv_pages_used()},
         {"busy_s", rank.busy_s()},
         {"wait_s", rank.wait_s()},
         {"ring_bytes", rank.ring_bytes()},
         {"slots", rank.slots()},
         {"busy_share", Ratio(rank.busy_s(), rank.busy_s() + rank.wait_s())},
         {"transfer_s", rank.transfer_s()},
         {"ring_bytes_per_s", Ratio(static_cast<double>(rank.ring_bytes()), rank.transfer_s())},
         {"hidden_share", Ratio(rank.hidden_s(), rank.transfer_s())}});
  }
  return {{"version", status.version()},
          {"uptime_s", status.uptime_s()},
          {"draining", status.draining()},
          {"queued", status.queued()},
          {"running", status.running()},
          {"steps", status.steps()},
          {"epoch", status.epoch()},
          {"seconds_since_progress", status.seconds_since_progress()},
          {"compute_dtype", status.compute_dtype()},
          {"kv_dtype", status.kv_dtype()},
          {"isa", status.isa()},
          {"attention_kernel", status.attention_kernel()},
          {"threads_per_rank", status.threads_per_rank()},
          {"stripe_tokens", status.stripe_tokens()},
          {"page_tokens", status.page_tokens()},
          {"chunk_tokens", status.chunk_tokens()},
          {"max_context_tokens", status.max_context_tokens()},
          {"kv_bytes", status.kv_bytes()},
          {"kv_tokens", status.kv_tokens()},
          {"numerics", status.numerics()},
          {"layout", status.layout()},
          {"transport", status.transport()},
          {"ring_formed", status.ring_formed()},
          {"ring_ranks", status.ranks_size()},
          {"configured_ranks", status.configured_ranks()},
          {"slots", status.slots()},
          {"failed_steps", status.failed_steps()},
          {"recomputed_tokens", status.recomputed_tokens()},
          {"imbalance", status.imbalance()},
          {"mode_tokens", SharesJson(status.modes())},
          {"strategy_tokens", SharesJson(status.strategies())},
          {"ranks", std::move(ranks)},
          {"model", ModelJson(model)}};
}

std::string StatusTable(const v1::GetStatusResponse& status, const v1::GetModelResponse& model) {
  std::string table;
  const auto row = [&table](const std::string& name, const std::string& value) {
    absl::StrAppendFormat(&table, "%-10s %s\n", name, value);
  };
  row("daemon",
      absl::StrCat("ringfilld ", status.version(), ", up ", FormatSeconds(status.uptime_s()),
                   status.draining() ? ", draining" : ""));
  row("model", absl::StrCat(model.name(), " (", model.architecture(), ", ", model.layers(),
                            " layers, ", model.weights(), ")"));
  row("context", absl::StrCat(FormatCount(status.max_context_tokens()), " tokens"));
  row("compute", absl::StrCat(status.compute_dtype(), " on ", status.isa(), ", attention ",
                              status.attention_kernel(), ", ", status.threads_per_rank(),
                              status.threads_per_rank() == 1 ? " thread a rank" : " threads a rank",
                              status.numerics() == "strict" ? ", strict" : ""));
  row("KV cache",
      absl::StrCat(status.kv_dtype(), ", ", FormatCount(status.kv_tokens()), " tokens in ",
                   FormatBytes(static_cast<double>(status.kv_bytes())), ", pages of ",
                   status.page_tokens(), ", stripes of ", status.stripe_tokens()));
  std::string load = absl::StrCat(status.running(), " running, ", status.queued(), " queued");
  if (status.running() > 0) {
    absl::StrAppend(&load, ", last progress ", FormatSeconds(status.seconds_since_progress()),
                    " ago");
  }
  row("requests", load);
  row("ring", RingText(status));
  if (status.failed_steps() > 0) {
    row("repairs",
        absl::StrCat(FormatNumbered(status.failed_steps(), "failed step"), ", ",
                     FormatNumbered(status.recomputed_tokens(), "token"), " recomputed"));
  }
  if (const std::string modes = FormatShares(status.modes()); !modes.empty()) {
    row("prompts", absl::StrCat("computed ", modes));
    const std::string strategies = FormatShares(status.strategies());
    if (!strategies.empty()) row("", absl::StrCat("attended ", strategies));
    row("balance", absl::StrFormat("busiest rank %.2f times the mean", status.imbalance()));
  }
  return table + "\n" + RankRows(status);
}

}  // namespace ringfill::cli
