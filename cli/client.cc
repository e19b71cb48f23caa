#include "cli/client.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "ringfill/v1/error_details.pb.h"

namespace ringfill::cli {
namespace {

using SystemClock = std::chrono::system_clock;

// Longer waits (and NaN) are as good as none and would overflow the clock.
constexpr double kMaxWaitS = 1e8;

SystemClock::time_point After(double seconds) {
  const std::chrono::duration<double> wait(seconds < kMaxWaitS ? seconds : kMaxWaitS);
  return SystemClock::now() + std::chrono::duration_cast<SystemClock::duration>(wait);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ConnectionOptions& options,
                                                        const Interrupt& interrupt) {
  std::shared_ptr<grpc::Channel> channel = MakeChannel(options.address);
  const SystemClock::time_point deadline = After(options.connect_timeout_s);
  constexpr auto kSlice = std::chrono::milliseconds(100);  // how soon an interrupt is noticed
  grpc_connectivity_state state = channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    if (interrupt.requested()) return absl::CancelledError("interrupted while connecting");
    const SystemClock::time_point now = SystemClock::now();
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN ||
        now >= deadline) {
      return absl::UnavailableError(absl::StrCat("no daemon answers at ", options.address,
                                                 ". Start one (ringfilld --config FILE), or give "
                                                 "--address HOST:PORT or RINGFILL_ADDRESS"));
    }
    channel->WaitForStateChange(state, std::min<SystemClock::time_point>(deadline, now + kSlice));
    state = channel->GetState(true);
  }
  return std::unique_ptr<Client>(new Client(options, v1::Ringfill::NewStub(channel)));
}

void Client::SetDeadline(grpc::ClientContext& context) const {
  if (timeout_s_ > 0) context.set_deadline(After(timeout_s_));
}

absl::Status Client::Ended(const grpc::Status& status) const {
  const bool timed_out = status.error_code() == grpc::DEADLINE_EXCEEDED && timeout_s_ > 0;
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()),
                   timed_out ? absl::StrCat("not done within --timeout ", timeout_s_, " s")
                             : status.error_message());
  v1::StatusDetails details;
  if (!details.ParseFromString(status.error_details())) return out;
  for (const google::protobuf::Any& detail : details.details()) {
    out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return out;
}

int ReportFailure(const absl::Status& status, const Interrupt& interrupt, Console& console) {
  if (interrupt.requested()) {
    console.PrintNote("interrupted, the request is cancelled");
  } else {
    console.PrintError(status);
  }
  return kRequestFailed;
}

std::unique_ptr<Client> ConnectOrReport(const ConnectionOptions& options,
                                        const Interrupt& interrupt, Console& console,
                                        int& exit_code) {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options, interrupt);
  if (client.ok()) return *std::move(client);
  if (absl::IsCancelled(client.status())) {
    exit_code = ReportFailure(client.status(), interrupt, console);
  } else {
    console.PrintError(client.status());
    exit_code = kUnreachable;
  }
  return nullptr;
}

}  // namespace ringfill::cli
