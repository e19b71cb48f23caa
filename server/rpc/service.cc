#include "server/rpc/service.h"

#include <utility>

#include "base/log.h"
#include "engine/request/retry.h"
#include "server/text.h"

namespace ringfill {

grpc::ServerUnaryReactor* RingfillService::RunUnary(Rpc rpc, grpc::CallbackServerContext& context,
                                                    size_t request_bytes,
                                                    std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  const auto finish = [this, rpc, reactor, arrived = services_.clock.Now()](absl::Status status) {
    const double seconds = Seconds(services_.clock.Now() - arrived);
    const Outcome outcome = OutcomeOf(status.code());
    services_.metrics.CountCall(rpc, outcome, seconds);
    Log(LogLevel::kDebug, "call finished",
        {{"rpc", RpcName(rpc)}, {"outcome", OutcomeName(outcome)}, {"total_ms", seconds * 1e3}});
    reactor->Finish(ToGrpcStatus(status));
  };
  if (request_bytes <= kInlineMessageBytes) {
    finish(work());
  } else if (!services_.conversions.TryPost([&context, work = std::move(work), finish] {
               // Nobody waits for it, and the end of the daemon must not.
               finish(context.IsCancelled() ? absl::CancelledError("the client is gone") : work());
             })) {
    finish(
        WithRetryAfter(absl::ResourceExhaustedError(Concat(
                           kMaxWaitingConversions, " long texts are being read; try again later")),
                       kRetrySoon));
  }
  return reactor;
}

}  // namespace ringfill
