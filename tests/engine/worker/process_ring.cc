#include "tests/engine/worker/process_ring.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/mutex.h"
#include "tests/engine/engine_cases.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The word after `option` of a command line whose words end in zeros.
std::string WordAfter(const std::string& command, const std::string& option) {
  const std::string before = option + '\0';
  const size_t at = command.find(before);
  if (at == std::string::npos) return "";
  return command.substr(at + before.size(),
                        command.find('\0', at + before.size()) - (at + before.size()));
}

pid_t ParentOf(const std::filesystem::path& process) {
  const std::string stat = ReadAll(process / "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream rest(stat.substr(name_end + 2));
  std::string state;
  pid_t parent = -1;
  rest >> state >> parent;
  return state == "Z" ? -1 : parent;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, Duration limit) {
  const Instant until = Clock::Real().Now() + limit;
  Mutex mutex;
  CondVar never;
  while (!condition()) {
    const Instant now = Clock::Real().Now();
    if (now >= until) return false;
    MutexLock lock(&mutex);
    never.WaitUntil(&mutex, now + std::chrono::milliseconds(1));
  }
  return true;
}

std::map<int, pid_t> WorkersOf(pid_t parent, const std::string& word) {
  std::map<int, pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t its_parent = ParentOf(entry.path());
    if (its_parent < 0 || (parent != 0 && its_parent != parent)) continue;
    const std::string command = ReadAll(entry.path() / "cmdline");
    const std::string rank = WordAfter(command, "--rank");
    if (rank.empty() || command.find(word) == std::string::npos) continue;
    found[std::stoi(rank)] = std::stoi(name);
  }
  return found;
}

RosterOptions RosterForTests(const std::string& model_path) {
  RosterOptions roster;
  roster.command = {RING_PROCESS, "worker"};
  roster.model_path = model_path;
  roster.first_backoff = roster.most_backoff = std::chrono::milliseconds(50);
  return roster;
}

WorkersFactory ProcessFactory(std::shared_ptr<const Model> model, RosterOptions roster, CpuIsa isa,
                              WorkerMetrics& metrics, ChangeProcesses change) {
  return [=, &metrics](const WorkersSpec& spec, const EngineInfo& info) {
    ProcessWorkersOptions options{.roster = roster,
                                  .dtype = info.dtype,
                                  .kv_dtype = info.kv_dtype,
                                  .isa = isa,
                                  .page_tokens = info.page_tokens};
    if (change) change(options);
    return MakeProcessWorkers(spec, *model, options, metrics);
  };
}

EngineOptions MeasuredOptions(int ranks) {
  EngineOptions options = SmallOptions(ranks);
  options.measure = true;
  options.weigh_by_speed = true;
  return options;
}

BusyCores::BusyCores(unsigned threads_per_core) {
  for (unsigned i = 0; i < threads_per_core * std::thread::hardware_concurrency(); ++i) {
    threads_.emplace_back([this] {
      while (!stop_.load(std::memory_order_relaxed)) {
      }
    });
  }
}

BusyCores::~BusyCores() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

double GaugeOf(ProcessRing& ring, const std::string& name, const std::string& rank) {
  for (const auto& family : ring.runner().metrics().registry()->Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if ((metric.label.empty() ? "" : metric.label[0].value) == rank) return metric.gauge.value;
    }
  }
  return NAN;
}

bool AwaitRanks(ProcessRing& ring, size_t ranks) {
  return Eventually([&] {
    ring.runner().Run(Greedy({5, 6, 7}, 1));
    return ring.engine().Status().ranks.size() == ranks;
  });
}

double LostTotal(ProcessRing& ring) {
  double sum = 0;
  for (const Counter* counter : ring.worker_metrics().lost) sum += counter->Value();
  return sum;
}

ProcessRing::ProcessRing(const std::string& model_path, EngineOptions options, RosterOptions roster,
                         ChangeProcesses change)
    : model_path_(model_path) {
  options.workers = ProcessFactory(LoadModelOrDie(model_path), std::move(roster), options.isa,
                                   worker_metrics_, std::move(change));
  runner_ = std::make_unique<EngineRunner>(model_path, options);
}

ProcessRing::~ProcessRing() = default;

std::map<int, pid_t> ProcessRing::Pids() const { return WorkersOf(getpid(), model_path_); }

}  // namespace ringfill
