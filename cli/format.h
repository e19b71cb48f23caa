// What the commands print: the documented JSON objects and the small tables. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "ringfill/v1/ringfill.pb.h"

namespace ringfill::cli {

// A finished generation, gathered from its events.
struct Generation {
  std::string text;
  std::vector<v1::Token> tokens;
  v1::Done done;
};

// {text, token_ids, finish_reason, usage, timings, ranks} and, when asked for, logprobs.
nlohmann::ordered_json GenerationJson(const Generation& generation, bool with_logprobs);
// "stop", "length".
std::string FinishReasonName(v1::FinishReason reason);

// Tokens, cached, queue, prefill, first token, decode rate and the share of each rank.
std::string StatsTable(const v1::Done& done);

nlohmann::ordered_json StatusJson(const v1::GetStatusResponse& status,
                                  const v1::GetModelResponse& model);
// A few lines about the daemon, then a row for each rank.
std::string StatusTable(const v1::GetStatusResponse& status, const v1::GetModelResponse& model);

// One line. Bytes that are not UTF-8 are replaced, never thrown on.
std::string DumpJson(const nlohmann::ordered_json& json);

}  // namespace ringfill::cli
