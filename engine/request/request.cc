#include "engine/request/request.h"

#include <span>

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

constexpr float kMaxTemperature = 100.0f;

template <typename T>
absl::Status Refuse(const char* field, T value, const char* limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", limit));
}

absl::Status CheckIds(const char* field, std::span<const TokenId> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "] is ", ids[i],
                                                     ", the vocabulary has ids 0 to ", vocab - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const char* field, size_t count, size_t limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", count, " entries, at most ", limit, " are allowed"));
}

// The comparisons are written so that NaN fails them.
absl::Status CheckSampling(const SamplingOptions& sampling) {
  if (!(sampling.temperature >= 0 && sampling.temperature <= kMaxTemperature)) {
    return Refuse("sampling.temperature", sampling.temperature, "from 0 to 100");
  }
  if (sampling.top_k < 0) return Refuse("sampling.top_k", sampling.top_k, "at least 0 (0: off)");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return Refuse("sampling.top_p", sampling.top_p, "above 0 and at most 1 (1: off)");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return Refuse("sampling.min_p", sampling.min_p, "from 0 to 1 (0: off)");
  }
  return absl::OkStatus();
}

absl::Status CheckStop(const StopOptions& stop, int64_t vocab) {
  if (stop.max_tokens < 1) return Refuse("stopping.max_tokens", stop.max_tokens, "at least 1");
  if (stop.min_tokens < 0) return Refuse("stopping.min_tokens", stop.min_tokens, "at least 0");
  if (stop.min_tokens > stop.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("stopping.min_tokens is ", stop.min_tokens,
                                                   ", must be at most max_tokens, ",
                                                   stop.max_tokens));
  }
  RF_RETURN_IF_ERROR(CheckCount("stopping.stop_token_ids", stop.stop_ids.size(), kMaxStopIds));
  RF_RETURN_IF_ERROR(CheckIds("stopping.stop_token_ids", stop.stop_ids, vocab));
  RF_RETURN_IF_ERROR(CheckCount("stopping.stop", stop.stop_strings.size(), kMaxStopStrings));
  for (size_t i = 0; i < stop.stop_strings.size(); ++i) {
    const size_t bytes = stop.stop_strings[i].size();
    if (bytes == 0 || bytes > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(absl::StrCat("stopping.stop[", i, "] has ", bytes,
                                                     " bytes, must be 1 to ", kMaxStopStringBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDocuments(const Request& request) {
  const std::vector<int64_t>& starts = request.document_starts;
  RF_RETURN_IF_ERROR(CheckCount("prompt.document_starts", starts.size(), kMaxDocuments));
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  for (size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] < 0 || starts[i] >= tokens) {
      return absl::InvalidArgumentError(absl::StrCat("prompt.document_starts[", i, "] is ",
                                                     starts[i], ", the prompt has positions 0 to ",
                                                     tokens - 1));
    }
    if (i > 0 && starts[i] <= starts[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt.document_starts[", i, "] is ", starts[i],
                       ", must be above the one before it, ", starts[i - 1]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const Request& request, const RequestLimits& limits) {
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens == 0) return absl::InvalidArgumentError("prompt is empty, must have at least 1 token");
  if (tokens > limits.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt has ", tokens, " tokens, the context holds ", limits.max_context_tokens));
  }
  if (request.kind == RequestKind::kGenerate && tokens == limits.max_context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", tokens, " tokens, the context holds ",
                     limits.max_context_tokens, ", which leaves no room for a generated token"));
  }
  return CheckIds("prompt", request.prompt, limits.vocab);
}

}  // namespace

absl::Status ValidateRequest(const Request& request, const RequestLimits& limits) {
  RF_RETURN_IF_ERROR(CheckSampling(request.sampling));
  RF_RETURN_IF_ERROR(CheckStop(request.stop, limits.vocab));
  if (request.logprobs < -1 || request.logprobs > kMaxLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", request.logprobs, ", must be from 0 to ", kMaxLogprobs));
  }
  RF_RETURN_IF_ERROR(CheckPrompt(request, limits));
  return CheckDocuments(request);
}

}  // namespace ringfill
