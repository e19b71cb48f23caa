// Tells the service manager how a running daemon fares, from a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/engine_status.h"
#include "server/app/service_manager.h"
#include "server/app/watcher.h"

namespace ringfill {

struct ReportedService {
  std::string name;                      // "MODEL on HOST:PORT", for people
  std::function<EngineStatus()> status;  // thread-safe
  // An engine that gave no sign of life for longer than this hangs: no more WATCHDOG=1, no more
  // time to stop. What readiness is judged by (daemon.h).
  double stalled_s = 0;
};

// READY=1 with the first line. Then, as often as the manager's watchdog wants and as what there is
// to tell changes: WATCHDOG=1 while the engine's leader makes steps, or looks for work when there
// is none; STATUS=; and EXTEND_TIMEOUT_USEC= while a drain may take longer than the manager
// expects.
class ServiceReporter {
 public:
  ServiceReporter(const ServiceManager& manager, ReportedService service);
  // STOPPING=1: the drain begins.
  void Draining();
  // Says no more. The service's status is asked until here.
  ~ServiceReporter() = default;

  // While draining, each report asks for so much time from then on; so a hang is found within it.
  static constexpr Duration kStopExtension = std::chrono::seconds(20);

 private:
  void Report();
  std::string StatusText(const EngineStatus& status, bool alive) const;

  const ServiceManager& manager_;
  const ReportedService service_;
  Mutex mutex_;  // one report at a time
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::string told_ ABSL_GUARDED_BY(mutex_);  // last STATUS=
  std::unique_ptr<Watcher> watcher_;          // last; none without a manager
};

}  // namespace ringfill
