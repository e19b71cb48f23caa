#include "server/rpc/convert.h"

#include <algorithm>
#include <limits>
#include <random>

#include "absl/strings/cord.h"
#include "ringfill/v1/error_details.pb.h"
#include "server/text.h"

namespace ringfill {
namespace {

uint64_t RandomBits() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

absl::StatusOr<std::string> ReadRequestId(const std::string& id) {
  if (id.empty()) return Concat("req-", absl::Hex(RandomBits(), absl::kZeroPad16));
  if (id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        Concat("request_id has ", id.size(), " characters; at most ", kMaxRequestIdBytes));
  }
  for (const char c : id) {
    if (c < 0x20 || c > 0x7e) {
      return absl::InvalidArgumentError("request_id holds a character that is not printable ASCII");
    }
  }
  return id;
}

absl::Status ReadInt(uint32_t value, std::string_view field, int& out) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        Concat(field, " is ", value, "; at most ", std::numeric_limits<int>::max()));
  }
  out = static_cast<int>(value);
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::Sampling& in, SamplingOptions& out) {
  if (in.has_temperature()) out.temperature = in.temperature();
  RF_RETURN_IF_ERROR(ReadInt(in.top_k(), "sampling.top_k", out.top_k));
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  out.seed = in.has_seed() ? in.seed() : RandomBits();
  return absl::OkStatus();
}

absl::Status ReadStopping(const v1::Stopping& in, int64_t vocab, StopOptions& out) {
  if (in.has_max_tokens()) {
    RF_RETURN_IF_ERROR(ReadInt(in.max_tokens(), "stopping.max_tokens", out.max_tokens));
  }
  RF_RETURN_IF_ERROR(ReadInt(in.min_tokens(), "stopping.min_tokens", out.min_tokens));
  out.ignore_eos = in.ignore_eos();
  RF_ASSIGN_OR_RETURN(out.stop_ids,
                      ToTokenIds(in.stop_token_ids(), "stopping.stop_token_ids", vocab));
  out.stop_strings.assign(in.stop().begin(), in.stop().end());
  return absl::OkStatus();
}

// The engine checks them, against the prompt.
void ReadDocuments(const v1::Prompt& in, Request& out) {
  out.document_starts.assign(in.document_starts().begin(), in.document_starts().end());
}

// Checks all but the prompt, so that a long one is not tokenized in vain.
absl::Status CheckOptions(Request& request, const RequestLimits& limits) {
  request.prompt = {0};
  RF_RETURN_IF_ERROR(ValidateRequest(request, limits));
  request.prompt.clear();
  return absl::OkStatus();
}

// The markup around an empty message would otherwise pass for a prompt.
absl::Status CheckContents(const v1::Chat& chat) {
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (message.role() == "user" && message.content().empty()) {
      return absl::InvalidArgumentError(
          Concat("prompt.chat: the prompt is empty: message ", i, " (user) has no content"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

PromptReader::PromptReader(const Tokenizer& tokenizer, absl::StatusOr<ChatTemplate> chat,
                           const RequestLimits& limits)
    : tokenizer_(tokenizer), chat_(std::move(chat)), limits_(limits) {
  for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
    longest_token_bytes_ = std::max(longest_token_bytes_, tokenizer_.TokenBytes(id).size());
  }
}

absl::StatusOr<std::vector<TokenId>> PromptReader::Read(const v1::Prompt& prompt) const {
  if (prompt.input_case() == v1::Prompt::kTokenIds) return ReadIds(prompt.token_ids());
  RF_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, Pieces(prompt));
  size_t bytes = 0;
  for (const PromptPiece& piece : pieces) bytes += piece.text.size();
  if (bytes == 0) return absl::InvalidArgumentError("prompt.text is empty");
  RF_RETURN_IF_ERROR(CheckContents(prompt.chat()));
  if (bytes / longest_token_bytes_ > static_cast<size_t>(limits_.max_context_tokens)) {
    return absl::InvalidArgumentError(
        Concat("prompt has ", bytes, " bytes of text: more than ", bytes / longest_token_bytes_,
               " tokens; the context holds ", limits_.max_context_tokens));
  }
  return Encode(pieces);
}

absl::StatusOr<std::vector<TokenId>> PromptReader::Tokenize(const v1::Prompt& prompt) const {
  if (prompt.input_case() == v1::Prompt::kTokenIds) {
    return absl::InvalidArgumentError("prompt.token_ids are tokens already; give text or chat");
  }
  if (!prompt.document_starts().empty()) {
    return absl::InvalidArgumentError(
        "prompt.document_starts change no token; leave them out of Tokenize");
  }
  RF_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, Pieces(prompt));
  return Encode(pieces);
}

absl::StatusOr<std::vector<PromptPiece>> PromptReader::Pieces(const v1::Prompt& prompt) const {
  if (prompt.input_case() == v1::Prompt::kText) {
    return std::vector<PromptPiece>{{prompt.text(), prompt.parse_special()}};
  }
  if (prompt.input_case() != v1::Prompt::kChat) {
    return absl::InvalidArgumentError("prompt is missing; give one of text, token_ids, chat");
  }
  if (!chat_.ok()) return chat_.status();
  std::vector<ChatMessage> messages;
  for (const v1::ChatMessage& message : prompt.chat().messages()) {
    messages.push_back({message.role(), message.content()});
  }
  absl::StatusOr<std::vector<PromptPiece>> pieces = chat_->Render(messages);
  if (pieces.ok()) return pieces;
  return absl::Status(pieces.status().code(), Concat("prompt.chat: ", pieces.status().message()));
}

absl::StatusOr<std::vector<TokenId>> PromptReader::ReadIds(const v1::TokenIds& ids) const {
  if (ids.ids().empty()) return absl::InvalidArgumentError("prompt.token_ids is empty");
  if (ids.ids_size() > limits_.max_context_tokens) {
    return absl::InvalidArgumentError(Concat(
        "prompt has ", ids.ids_size(), " tokens; the context holds ", limits_.max_context_tokens));
  }
  return ToTokenIds(ids.ids(), "prompt.token_ids", limits_.vocab);
}

absl::StatusOr<std::vector<TokenId>> PromptReader::Encode(
    const std::vector<PromptPiece>& pieces) const {
  std::vector<TextPiece> views;
  for (const PromptPiece& piece : pieces) views.push_back({piece.text, piece.special});
  return tokenizer_.EncodePieces(views);
}

absl::StatusOr<std::vector<TokenId>> ToTokenIds(const google::protobuf::RepeatedField<uint32_t>& in,
                                                std::string_view field, int64_t vocab) {
  std::vector<TokenId> out(in.size());
  for (int i = 0; i < in.size(); ++i) {
    if (in[i] >= vocab) {
      return absl::InvalidArgumentError(
          Concat(field, "[", i, "] is ", in[i], "; the vocabulary has ", vocab, " tokens"));
    }
    out[i] = static_cast<TokenId>(in[i]);
  }
  return out;
}

absl::StatusOr<Request> ToRequest(const v1::GenerateRequest& in, const PromptReader& prompts) {
  Request out;
  RF_ASSIGN_OR_RETURN(out.id, ReadRequestId(in.request_id()));
  RF_RETURN_IF_ERROR(ReadSampling(in.sampling(), out.sampling));
  RF_RETURN_IF_ERROR(ReadStopping(in.stopping(), prompts.limits().vocab, out.stop));
  if (in.has_logprobs()) RF_RETURN_IF_ERROR(ReadInt(in.logprobs(), "logprobs", out.logprobs));
  out.prompt_logprobs = in.prompt_logprobs();
  RF_RETURN_IF_ERROR(CheckOptions(out, prompts.limits()));
  RF_ASSIGN_OR_RETURN(out.prompt, prompts.Read(in.prompt()));
  ReadDocuments(in.prompt(), out);
  return out;
}

absl::StatusOr<Request> ToRequest(const v1::ScoreRequest& in, const PromptReader& prompts) {
  Request out;
  out.kind = RequestKind::kScore;
  out.prompt_logprobs = true;
  RF_ASSIGN_OR_RETURN(out.id, ReadRequestId(in.request_id()));
  RF_ASSIGN_OR_RETURN(out.prompt, prompts.Read(in.prompt()));
  ReadDocuments(in.prompt(), out);
  return out;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  v1::StatusDetails details;
  details.set_code(code);
  details.set_message(std::string(status.message().substr(0, kMaxStatusBytes)));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& value) {
    google::protobuf::Any& detail = *details.add_details();
    detail.set_type_url(std::string(type));
    detail.set_value(std::string(value));
  });
  if (details.details().empty()) return grpc::Status(code, details.message());
  const std::string bytes = details.SerializeAsString();
  return grpc::Status(code, details.message(), bytes.size() <= kMaxDetailsBytes ? bytes : "");
}

}  // namespace ringfill
