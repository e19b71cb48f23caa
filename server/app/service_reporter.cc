#include "server/app/service_reporter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/text.h"

namespace ringfill {
namespace {

// A sign of life comes several times before the manager would miss it.
constexpr int kSignsPerWatchdog = 4;
constexpr Duration kShortestPeriod = std::chrono::milliseconds(10);
constexpr Duration kLongestPeriod = std::chrono::seconds(2);

Duration Period(const ServiceManager& manager) {
  if (!manager.watchdog().has_value()) return kLongestPeriod;
  return std::clamp(*manager.watchdog() / kSignsPerWatchdog, kShortestPeriod, kLongestPeriod);
}

std::string Microseconds(Duration d) {
  return Concat(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

}  // namespace

ServiceReporter::ServiceReporter(const ServiceManager& manager, ReportedService service)
    : manager_(manager), service_(std::move(service)) {
  if (!manager_.present()) return;
  manager_.Notify("READY=1");
  Report();
  watcher_ = std::make_unique<Watcher>(Period(manager_), [this] { Report(); });
}

void ServiceReporter::Draining() {
  if (!manager_.present()) return;
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    manager_.Notify("STOPPING=1");
  }
  Report();
}

void ServiceReporter::Report() {
  MutexLock lock(&mutex_);
  const EngineStatus status = service_.status();
  const bool alive = status.seconds_since_sign_of_life <= service_.stalled_s;
  std::string text;
  if (alive && manager_.watchdog().has_value()) text = "WATCHDOG=1\n";
  if (alive && draining_) {
    text += Concat("EXTEND_TIMEOUT_USEC=", Microseconds(kStopExtension), "\n");
  }
  if (std::string line = OneLine(StatusText(status, alive)); line != told_) {
    text += Concat("STATUS=", line, "\n");
    told_ = std::move(line);
  }
  if (!text.empty()) manager_.Notify(text);
}

std::string ServiceReporter::StatusText(const EngineStatus& status, bool alive) const {
  const std::string requests =
      Concat(status.running, " running, ", status.queued, " queued requests");
  if (!alive) return Concat("hangs: no progress with ", requests);
  if (draining_) return Concat("draining: ", requests);
  if (!status.ring_formed) return Concat("not ready: the ranks form no ring; ", requests);
  return Concat("serving ", service_.name, ": ", requests);
}

}  // namespace ringfill
