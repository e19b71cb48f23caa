#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace ringfill {

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int64_t UsableMemory() {
  const int64_t machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(machine, GroupMemoryLimit().value_or(machine));
}

std::optional<int64_t> GroupMemoryLimit(const std::filesystem::path& root) {
  std::optional<int64_t> least;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // number:controllers:path, with neither number nor controllers in version 2.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool second = fields[0] == "0" && fields[1].empty();
    if (!second && std::ranges::find(controllers, "memory") == controllers.end()) continue;
    const char* const name = second ? "memory.max" : "memory.limit_in_bytes";
    std::filesystem::path group = std::filesystem::path(fields[2]).relative_path();
    // A container may see its own group as the root, whatever the path says.
    while (true) {
      for (const char* const mount : {"", "unified", "memory"}) {
        int64_t limit = 0;  // "max" is no number
        std::ifstream file(root / "sys/fs/cgroup" / mount / group / name);
        if (file >> limit && limit > 0) least = std::min(least.value_or(limit), limit);
      }
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return least;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace ringfill
