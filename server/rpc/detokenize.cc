#include "server/rpc/service.h"

namespace ringfill {
namespace {

// With U+FFFD for what is not UTF-8: a protobuf string must be.
std::string ToUtf8(std::string bytes) {
  std::string text = TakeCompleteUtf8(bytes);
  if (!bytes.empty()) text += "\xEF\xBF\xBD";
  return text;
}

}  // namespace

grpc::ServerUnaryReactor* RingfillService::Detokenize(grpc::CallbackServerContext* context,
                                                      const v1::DetokenizeRequest* request,
                                                      v1::DetokenizeResponse* response) {
  return RunUnary(Rpc::kDetokenize, *context, request->ByteSizeLong(), [=, this]() -> absl::Status {
    const Tokenizer& tokenizer = services_.prompts.tokenizer();
    RF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                        ToTokenIds(request->token_ids(), "token_ids", tokenizer.vocab_size()));
    response->set_text(ToUtf8(tokenizer.Decode(ids, request->skip_special())));
    return absl::OkStatus();
  });
}

}  // namespace ringfill
