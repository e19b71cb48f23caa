#include "server/app/version.h"
#include "server/rpc/service.h"

namespace ringfill {

grpc::ServerUnaryReactor* RingfillService::GetStatus(grpc::CallbackServerContext* context,
                                                     const v1::GetStatusRequest*,
                                                     v1::GetStatusResponse* response) {
  return RunUnary(Rpc::kGetStatus, *context, 0, [=, this] {
    ToProto(services_.engine.Status(), services_.engine.info(), *response);
    response->set_version(Version());
    response->set_uptime_s(Seconds(services_.clock.Now() - services_.started));
    return absl::OkStatus();
  });
}

}  // namespace ringfill
