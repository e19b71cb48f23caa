// The process metrics that every Prometheus client library exports, read from /proc on each scrape.
#pragma once

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace ringfill {

// Thread-safe. What cannot be read is left out of that scrape.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace ringfill
