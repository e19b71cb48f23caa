#include "tests/cli/fake_daemon.h"

#include <chrono>
#include <thread>

#include "base/check.h"
#include "grpc/grpc.h"

namespace ringfill::cli {

FakeDaemon::FakeDaemon() {
  // Held until the process ends: taking the library down can wait 10 s for its own objects.
  grpc_init();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  RF_CHECK(server_ != nullptr && port_ > 0);
}

FakeDaemon::~FakeDaemon() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

v1::GenerateRequest FakeDaemon::last_generate() const {
  absl::MutexLock lock(&mutex_);
  return last_generate_;
}

v1::TraceRequest FakeDaemon::last_trace() const {
  absl::MutexLock lock(&mutex_);
  return last_trace_;
}

grpc::Status FakeDaemon::Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                               grpc::ServerWriter<v1::TraceEvent>* writer) {
  {
    absl::MutexLock lock(&mutex_);
    last_trace_ = *request;
  }
  for (const v1::TraceEvent& event : trace) writer->Write(event);
  if (hang) AwaitCancel(context);
  return trace_status;
}

grpc::Status FakeDaemon::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                  grpc::ServerWriter<v1::GenerateEvent>* writer) {
  {
    absl::MutexLock lock(&mutex_);
    last_generate_ = *request;
  }
  for (const v1::GenerateEvent& event : events) writer->Write(event);
  if (!hang) return generate_status;
  AwaitCancel(context);
  return grpc::Status::CANCELLED;
}

void FakeDaemon::AwaitCancel(grpc::ServerContext* context) {
  hanging.Notify();
  // The synchronous API has no callback for a cancellation.
  while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  cancelled.Notify();
}

grpc::Status FakeDaemon::Score(grpc::ServerContext*, const v1::ScoreRequest*,
                               v1::ScoreResponse* response) {
  *response = score;
  return unary_status;
}

grpc::Status FakeDaemon::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest*,
                                  v1::TokenizeResponse* response) {
  *response = tokenize;
  return unary_status;
}

grpc::Status FakeDaemon::Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest*,
                                    v1::DetokenizeResponse* response) {
  *response = detokenize;
  return unary_status;
}

grpc::Status FakeDaemon::GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                                  v1::GetModelResponse* response) {
  response->set_name("fake");
  return unary_status;
}

grpc::Status FakeDaemon::GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                                   v1::GetStatusResponse* response) {
  response->set_version("9.9");
  return unary_status;
}

}  // namespace ringfill::cli
