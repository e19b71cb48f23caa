#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "prometheus/text_serializer.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

std::string Exported(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
}

TEST(MetricsTest, ValuesAreExported) {
  Metrics metrics;
  metrics.AddCounter("ringfill_things_total", "Things.", {{"kind", "a"}}).Increment(3);
  metrics.AddGauge("ringfill_level", "Level.").Set(-2.5);
  Histogram& histogram = metrics.AddHistogram("ringfill_wait_seconds", "Wait.", {0.1, 1});
  histogram.Observe(0.05);
  histogram.Observe(0.5);
  histogram.Observe(50);
  const std::string text = Exported(metrics);
  EXPECT_THAT(text, HasSubstr("# HELP ringfill_things_total Things.\n"
                              "# TYPE ringfill_things_total counter\n"
                              "ringfill_things_total{kind=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("ringfill_level -2.5\n"));
  EXPECT_THAT(text, HasSubstr("ringfill_wait_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ringfill_wait_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ringfill_wait_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(MetricsTest, SameNameAndLabelsIsTheSameMetric) {
  Metrics metrics;
  Counter& first = metrics.AddCounter("ringfill_a_total", "A.", {{"rank", "0"}});
  EXPECT_EQ(&metrics.AddCounter("ringfill_a_total", "A.", {{"rank", "0"}}), &first);
  EXPECT_NE(&metrics.AddCounter("ringfill_a_total", "A.", {{"rank", "1"}}), &first);
  Gauge& gauge = metrics.AddGauge("ringfill_g", "G.");
  EXPECT_EQ(&metrics.AddGauge("ringfill_g", "G."), &gauge);
  Histogram& histogram = metrics.AddHistogram("ringfill_h_seconds", "H.", {1});
  EXPECT_EQ(&metrics.AddHistogram("ringfill_h_seconds", "H.", {1}), &histogram);
}

TEST(MetricsTest, RegistriesAreSeparate) {
  Metrics a, b;
  a.AddCounter("ringfill_only_in_a_total", "A.").Increment();
  EXPECT_THAT(Exported(b), Not(HasSubstr("only_in_a")));
}

}  // namespace
}  // namespace ringfill
