#include "server/metrics/process_metrics.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ringfill {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Seconds since the epoch at which the machine started.
std::optional<double> BootTime() {
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(ReadFile("/proc/stat"), '\n'))) {
    double seconds = 0;
    if (line.starts_with("btime ") && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return std::nullopt;
}

std::optional<double> OpenFiles() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return count - 1;  // the directory itself was open
}

class Families {
 public:
  void Add(const char* name, const char* help, prometheus::MetricType type,
           std::optional<double> value) {
    if (!value) return;
    prometheus::ClientMetric metric;
    metric.gauge.value = *value;
    metric.counter.value = *value;
    families_.push_back({name, help, type, {metric}});
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  using prometheus::MetricType;
  const std::string stat = ReadFile("/proc/self/stat");
  // The fields after the command's name, which may hold spaces: state is number 3 in proc(5).
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)), ' ');
  const auto field = [&fields](size_t number) -> std::optional<double> {
    double value = 0;
    if (fields.size() <= number - 3 || !absl::SimpleAtod(fields[number - 3], &value)) {
      return std::nullopt;
    }
    return value;
  };
  const auto ticks_per_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  const auto user = field(14), system = field(15), start = field(22), resident = field(24);
  const auto boot = BootTime();

  Families families;
  families.Add("process_cpu_seconds_total", "CPU seconds of the process, user and system.",
               MetricType::Counter,
               user && system ? std::optional((*user + *system) / ticks_per_s) : std::nullopt);
  families.Add("process_resident_memory_bytes", "Resident memory of the process.",
               MetricType::Gauge, resident ? std::optional(*resident * page_bytes) : std::nullopt);
  families.Add("process_start_time_seconds", "Start of the process, seconds since 1970.",
               MetricType::Gauge,
               start && boot ? std::optional(*boot + *start / ticks_per_s) : std::nullopt);
  families.Add("process_open_fds", "Open file descriptors of the process.", MetricType::Gauge,
               OpenFiles());
  return families.Take();
}

}  // namespace ringfill
