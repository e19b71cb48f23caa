#include "engine/worker/boot_id.h"

#include <fstream>

namespace ringfill {

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace ringfill
