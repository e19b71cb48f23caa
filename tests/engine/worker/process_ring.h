// An engine whose ranks are processes of the test's own worker program, and a way to get at them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/process_workers.h"
#include "tests/testing/engine_runner.h"

namespace ringfill {

// Starts the test's worker program; little backoff, short heartbeats.
RosterOptions RosterForTests(const std::string& model_path);

// Changes what the options of the ranks are made of.
using ChangeProcesses = std::function<void(ProcessWorkersOptions&)>;

class ProcessRing {
 public:
  // Aborts the test process when the ring cannot form.
  ProcessRing(const std::string& model_path, EngineOptions options, RosterOptions roster,
              ChangeProcesses change = nullptr);
  ~ProcessRing();

  EngineRunner& runner() { return *runner_; }
  Engine& engine() { return runner_->engine(); }
  Metrics& metrics() { return metrics_; }
  WorkerMetrics& worker_metrics() { return worker_metrics_; }
  // The workers that run now, by the rank they were started for.
  std::map<int, pid_t> Pids() const;

 private:
  const std::string model_path_;
  Metrics metrics_;
  WorkerMetrics worker_metrics_{metrics_};
  std::unique_ptr<EngineRunner> runner_;
};

// Makes such workers with the options that `roster` leaves open taken from spec and info.
WorkersFactory ProcessFactory(std::shared_ptr<const Model> model, RosterOptions roster, CpuIsa isa,
                              WorkerMetrics& metrics, ChangeProcesses change = nullptr);

// Measured at start, and weighed by it.
EngineOptions MeasuredOptions(int ranks);

// Keeps the machine busy for as long as it lives: so many threads a core.
class BusyCores {
 public:
  explicit BusyCores(unsigned threads_per_core);
  ~BusyCores();

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Of a gauge that the engine has, of one rank where that is given; NaN when there is none.
double GaugeOf(ProcessRing& ring, const std::string& name, const std::string& rank = "");

// Short requests until the ring has so many ranks: newcomers come in between steps.
bool AwaitRanks(ProcessRing& ring, size_t ranks);
// Workers lost so far, for whatever reason.
double LostTotal(ProcessRing& ring);

// Processes with this parent (0: any) whose command line holds `word`: pid by "--rank".
std::map<int, pid_t> WorkersOf(pid_t parent, const std::string& word);

// False when `condition` did not come true within the limit. Asks again and again.
bool Eventually(const std::function<bool()>& condition, Duration limit = std::chrono::seconds(60));

}  // namespace ringfill
