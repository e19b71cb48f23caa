#include "server/rpc/engine_call.h"
#include "server/rpc/service.h"

namespace ringfill {
namespace {

class ScoreCall final : public EngineCall, public grpc::ServerUnaryReactor {
 public:
  ScoreCall(RpcServices& services, grpc::CallbackServerContext& context,
            v1::ScoreResponse& response)
      : EngineCall(services, Rpc::kScore, context), response_(response) {}

  void OnCancel() override { PeerGone(); }
  void OnDone() override { Ended(); }

 private:
  bool Stage(const RequestEvent& event) override {
    if (const auto* done = std::get_if<DoneEvent>(&event)) ToProto(*done, response_);
    return false;
  }
  void SendWrite() override {}
  void SendStatus(const grpc::Status& status) override { Finish(status); }

  v1::ScoreResponse& response_;
};

}  // namespace

grpc::ServerUnaryReactor* RingfillService::Score(grpc::CallbackServerContext* context,
                                                 const v1::ScoreRequest* request,
                                                 v1::ScoreResponse* response) {
  const auto call = std::make_shared<ScoreCall>(services_, *context, *response);
  call->Start(request->ByteSizeLong(),
              [this, request] { return ToRequest(*request, services_.prompts); });
  return call.get();
}

}  // namespace ringfill
