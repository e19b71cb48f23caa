// The Prometheus endpoint: GET /metrics over HTTP.
#pragma once

#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/status.h"
#include "prometheus/exposer.h"
#include "server/metrics/process_metrics.h"

namespace ringfill {

// Serves from threads of its own while it lives.
class MetricsEndpoint {
 public:
  // `listen` is IP:PORT (or localhost:PORT), port 0 for a free one. INVALID_ARGUMENT when it cannot
  // be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen,
                                                                const Metrics& metrics);
  ~MetricsEndpoint();

  // With the real port.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint() = default;

  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<ProcessMetrics> process_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string host_;
  int port_ = 0;
  std::string address_;
};

}  // namespace ringfill
