#include "server/rpc/service.h"

namespace ringfill {

grpc::ServerUnaryReactor* RingfillService::Tokenize(grpc::CallbackServerContext* context,
                                                    const v1::TokenizeRequest* request,
                                                    v1::TokenizeResponse* response) {
  return RunUnary(Rpc::kTokenize, *context, request->ByteSizeLong(), [=, this]() -> absl::Status {
    RF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                        services_.prompts.Tokenize(request->prompt()));
    response->mutable_token_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  });
}

}  // namespace ringfill
