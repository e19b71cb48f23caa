#include "server/rpc/service.h"

namespace ringfill {

grpc::ServerUnaryReactor* RingfillService::GetModel(grpc::CallbackServerContext* context,
                                                    const v1::GetModelRequest*,
                                                    v1::GetModelResponse* response) {
  return RunUnary(Rpc::kGetModel, *context, 0, [=, this] {
    ToProto(services_.engine.model(), services_.prompts, *response);
    return absl::OkStatus();
  });
}

}  // namespace ringfill
