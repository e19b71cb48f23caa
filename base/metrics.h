// Metric handles. Each metric is added beside the code that moves it and listed in docs/metrics.md,
// which a test compares with what a running daemon exports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/registry.h"

namespace ringfill {

using Counter = prometheus::Counter;
using Gauge = prometheus::Gauge;
using Histogram = prometheus::Histogram;
using Labels = prometheus::Labels;

// Creates metrics in one registry. Handles stay valid as long as the registry. Thread-safe. Names
// carry the prefix `ringfill_`, units as suffix (`_seconds`, `_bytes`), counters end in `_total`.
class Metrics {
 public:
  Metrics() : registry_(std::make_shared<prometheus::Registry>()) {}

  // Adding the same name and labels twice returns the same metric.
  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `buckets`: ascending upper bounds, +Inf is implied.
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets, const Labels& labels = {});

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
};

}  // namespace ringfill
