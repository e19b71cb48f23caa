// Between the wire (ringfill.v1) and the engine's own types. Every way in which a request can be
// wrong ends here or in ValidateRequest, as a status that names the field, the value and the limit.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/model/chat_template.h"
#include "engine/model/tokenizer.h"
#include "engine/request/event.h"
#include "engine/request/request.h"
#include "grpcpp/support/status.h"
#include "ringfill/v1/ringfill.pb.h"

namespace ringfill {

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxStatusBytes = 1024;   // statuses travel in HTTP/2 headers
inline constexpr size_t kMaxDetailsBytes = 2048;  // likewise; larger ones are left out

// Turns prompts into token ids. Immutable; thread-safe. `tokenizer` outlives it.
class PromptReader {
 public:
  // `chat` is the model's template, or why it has none that is known.
  PromptReader(const Tokenizer& tokenizer, absl::StatusOr<ChatTemplate> chat,
               const RequestLimits& limits);

  // INVALID_ARGUMENT; FAILED_PRECONDITION for a chat without a known template. Linear in the
  // prompt, and what cannot fit into the context is refused before it is tokenized.
  absl::StatusOr<std::vector<TokenId>> Read(const v1::Prompt& prompt) const;
  // The same without the limit of the context, and without token ids: for Tokenize.
  absl::StatusOr<std::vector<TokenId>> Tokenize(const v1::Prompt& prompt) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const absl::StatusOr<ChatTemplate>& chat() const { return chat_; }
  const RequestLimits& limits() const { return limits_; }

 private:
  absl::StatusOr<std::vector<PromptPiece>> Pieces(const v1::Prompt& prompt) const;
  absl::StatusOr<std::vector<TokenId>> ReadIds(const v1::TokenIds& ids) const;
  absl::StatusOr<std::vector<TokenId>> Encode(const std::vector<PromptPiece>& pieces) const;

  const Tokenizer& tokenizer_;
  const absl::StatusOr<ChatTemplate> chat_;
  const RequestLimits limits_;
  size_t longest_token_bytes_ = 1;
};

// Without a deadline. An absent seed gets a fresh one, an empty request id a made one.
absl::StatusOr<Request> ToRequest(const v1::GenerateRequest& in, const PromptReader& prompts);
absl::StatusOr<Request> ToRequest(const v1::ScoreRequest& in, const PromptReader& prompts);

// Token ids of a message, checked against the vocabulary. `field` names them in errors.
absl::StatusOr<std::vector<TokenId>> ToTokenIds(const google::protobuf::RepeatedField<uint32_t>& in,
                                                std::string_view field, int64_t vocab);

void ToProto(const AcceptedEvent& in, const std::string& request_id, v1::Accepted& out);
void ToProto(const ProgressEvent& in, v1::Progress& out);
void ToProto(const TokenEvent& in, v1::Token& out);
void ToProto(const DoneEvent& in, v1::Done& out);
void ToProto(const DoneEvent& in, v1::ScoreResponse& out);
void ToProto(const EngineStatus& status, const EngineInfo& info, v1::GetStatusResponse& out);
void ToProto(const Model& model, const PromptReader& prompts, v1::GetModelResponse& out);

// The same code; the message cut at kMaxStatusBytes. Payloads (when to try again) become the
// status's details, as google.rpc.Status carries them.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace ringfill
