#include "server/rpc/engine_call.h"
#include "server/rpc/service.h"

namespace ringfill {
namespace {

class GenerateCall final : public EngineCall, public grpc::ServerWriteReactor<v1::GenerateEvent> {
 public:
  GenerateCall(RpcServices& services, grpc::CallbackServerContext& context)
      : EngineCall(services, Rpc::kGenerate, context) {}

  void OnWriteDone(bool ok) override { WriteEnded(ok); }
  void OnCancel() override { PeerGone(); }
  void OnDone() override { Ended(); }

 private:
  bool Stage(const RequestEvent& event) override {
    message_.Clear();
    if (const auto* accepted = std::get_if<AcceptedEvent>(&event)) {
      ToProto(*accepted, request_id(), *message_.mutable_accepted());
    } else if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, *message_.mutable_progress());
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      ToProto(*token, *message_.mutable_token());
    } else if (const auto* done = std::get_if<DoneEvent>(&event)) {
      ToProto(*done, *message_.mutable_done());
    }
    return true;
  }
  void SendWrite() override { StartWrite(&message_); }
  void SendStatus(const grpc::Status& status) override { Finish(status); }

  v1::GenerateEvent message_;  // of the write in flight
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateEvent>* RingfillService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto call = std::make_shared<GenerateCall>(services_, *context);
  call->Start(request->ByteSizeLong(),
              [this, request] { return ToRequest(*request, services_.prompts); });
  return call.get();
}

}  // namespace ringfill
