// A daemon that serves scripted answers over a real socket, for tests of the command on the wire.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/grpcpp.h"
#include "ringfill/v1/ringfill.grpc.pb.h"

namespace ringfill::cli {

// Listens on a free port of 127.0.0.1 while alive. Set the answers before the first call.
class FakeDaemon : private v1::Ringfill::Service {
 public:
  FakeDaemon();
  ~FakeDaemon() override;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  v1::GenerateRequest last_generate() const;
  v1::TraceRequest last_trace() const;

  std::vector<v1::GenerateEvent> events;  // what Generate streams
  grpc::Status generate_status;           // how it ends
  bool hang = false;             // Generate and Trace wait for their cancellation after the events
  absl::Notification hanging;    // ... and says so
  absl::Notification cancelled;  // ... and has seen it
  grpc::Status unary_status;     // of every other call
  v1::ScoreResponse score;
  v1::TokenizeResponse tokenize;
  v1::DetokenizeResponse detokenize;
  std::vector<v1::TraceEvent> trace;  // what Trace streams
  grpc::Status trace_status;          // how it ends

 private:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override;
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest*,
                     v1::ScoreResponse* response) override;
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest*,
                        v1::TokenizeResponse* response) override;
  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest*,
                          v1::DetokenizeResponse* response) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override;
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override;

  grpc::Status Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                     grpc::ServerWriter<v1::TraceEvent>* writer) override;

  void AwaitCancel(grpc::ServerContext* context);

  mutable absl::Mutex mutex_;
  v1::GenerateRequest last_generate_ ABSL_GUARDED_BY(mutex_);
  v1::TraceRequest last_trace_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ringfill::cli
