#include "server/metrics/metrics_endpoint.h"

#include <vector>

#include "server/text.h"

namespace ringfill {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";  // the HTTP server takes addresses only
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  endpoint->registry_ = metrics.registry();
  endpoint->process_ = std::make_shared<ProcessMetrics>();
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", Concat(host, listen.substr(colon)),
                                 "num_threads", "2", "request_timeout_ms", "10000"});
    const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
    if (ports.empty()) throw std::runtime_error("no port");
    endpoint->address_ = Concat(host, ":", ports[0]);
    endpoint->exposer_->RegisterCollectable(endpoint->registry_);
    endpoint->exposer_->RegisterCollectable(endpoint->process_);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(Concat("metrics.listen: cannot listen on ", listen, ": ",
                                             e.what(),
                                             " (is the address local, and the port free?)"));
  }
  return endpoint;
}

}  // namespace ringfill
