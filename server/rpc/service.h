// The service ringfill.v1.Ringfill; each method lives in a file of its own name.
#pragma once

#include <functional>

#include "grpcpp/server_context.h"
#include "ringfill/v1/ringfill.grpc.pb.h"
#include "server/rpc/rpc_services.h"

namespace ringfill {

// Thread-safe.
class RingfillService final : public v1::Ringfill::CallbackService {
 public:
  explicit RingfillService(RpcServices& services) : services_(services) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerWriteReactor<v1::TraceEvent>* Trace(grpc::CallbackServerContext* context,
                                                  const v1::TraceRequest* request) override;

 private:
  // Runs `work` here when the message is small, else in the conversion queue; finishes the call
  // with its status and counts it.
  grpc::ServerUnaryReactor* RunUnary(Rpc rpc, grpc::CallbackServerContext& context,
                                     size_t request_bytes, std::function<absl::Status()> work);

  RpcServices& services_;
};

}  // namespace ringfill
