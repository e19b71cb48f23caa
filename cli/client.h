// One connection to a daemon.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "grpcpp/grpcpp.h"
#include "ringfill/v1/ringfill.grpc.pb.h"

namespace ringfill::cli {

// Not thread-safe.
class Client {
 public:
  // UNAVAILABLE with the address and a hint when nothing takes the connection: at once when it is
  // refused, else within connect_timeout_s. CANCELLED when an interrupt comes first.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectionOptions& options,
                                                         const Interrupt& interrupt);

  v1::Ringfill::Stub& stub() { return *stub_; }
  // Puts the request's deadline on a context.
  void SetDeadline(grpc::ClientContext& context) const;
  // How a call ended; both use one numbering of codes. Details become payloads, and a deadline that
  // SetDeadline gave is called by its flag.
  absl::Status Ended(const grpc::Status& status) const;

 private:
  Client(const ConnectionOptions& options, std::unique_ptr<v1::Ringfill::Stub> stub)
      : timeout_s_(options.timeout_s), stub_(std::move(stub)) {}

  double timeout_s_;
  std::unique_ptr<v1::Ringfill::Stub> stub_;
};

// Prints the failure and gives the exit code: interrupted requests get a short line of their own.
int ReportFailure(const absl::Status& status, const Interrupt& interrupt, Console& console);

// A connection, or its failure printed and `exit_code` set: kUnreachable, or kRequestFailed when it
// was interrupted.
std::unique_ptr<Client> ConnectOrReport(const ConnectionOptions& options,
                                        const Interrupt& interrupt, Console& console,
                                        int& exit_code);

// One call with one answer. Prints a failure.
template <typename RequestT, typename ResponseT>
int CallUnary(Client& client,
              grpc::Status (v1::Ringfill::Stub::*method)(grpc::ClientContext*, const RequestT&,
                                                         ResponseT*),
              const RequestT& request, ResponseT& response, Interrupt& interrupt,
              Console& console) {
  grpc::ClientContext context;
  client.SetDeadline(context);
  Interrupt::Scope scope(interrupt, context);
  const grpc::Status status = (client.stub().*method)(&context, request, &response);
  if (status.ok()) return kDone;
  return ReportFailure(client.Ended(status), interrupt, console);
}

}  // namespace ringfill::cli
